"""Changes are told on balance, and once."""

from baton.naming import BlobName
from engine.kv.changes import CacheChanges, NameChanges


def name(text: str) -> BlobName:
    return BlobName(text.encode().ljust(16))


def test_what_came_and_went_is_told_once() -> None:
    changes = NameChanges()
    changes.bound(name("a"))
    changes.bound(name("b"))
    assert changes.take() == CacheChanges((name("a"), name("b")), ())
    changes.lost(name("a"))
    assert changes.take() == CacheChanges((), (name("a"),))
    assert not changes.take()


def test_what_came_and_went_again_is_not_told() -> None:
    changes = NameChanges()
    changes.bound(name("a"))
    changes.lost(name("a"))
    assert not changes.take()
    changes.bound(name("a"))
    assert changes.take()
    changes.lost(name("a"))
    changes.bound(name("a"))
    assert changes.take() == CacheChanges()
