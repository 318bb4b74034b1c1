"""Generated stubs of `proto/baton/v1`; `make proto` writes them."""
