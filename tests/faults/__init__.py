"""What goes wrong, over real processes: `catalogue` lists the tests by item of failures.md."""
