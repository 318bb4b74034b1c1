"""`python -m baton.cli` is `baton`."""

from baton.cli import main

main()
