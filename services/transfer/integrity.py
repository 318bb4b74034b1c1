"""Invariants that every structure of this service can check about itself."""


class BrokenInvariant(Exception):
    """A structure contradicts itself: a bug."""


def ensure(holds: bool, what: str) -> None:
    """Raises BrokenInvariant, saying what should hold, unless it does."""
    if not holds:
        raise BrokenInvariant(what)
