"""Baton's processes, one package each; what they share is in `common` and `worker`."""
