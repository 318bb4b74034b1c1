"""Invariants that stateful structures can check about themselves."""


class BrokenInvariant(Exception):
    """A structure contradicts itself: a bug."""


def ensure(holds: bool, what: str) -> None:
    """Raises BrokenInvariant, saying what should hold, unless it does."""
    if not holds:
        raise BrokenInvariant(what)
