"""Which names were bound and lost since somebody last asked. Knows names only."""

from dataclasses import dataclass

from baton.naming import BlobName


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """What changed on balance: a name that came and went again is in neither."""

    added: tuple[BlobName, ...] = ()
    removed: tuple[BlobName, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


NO_CHANGES = CacheChanges()


class NameChanges:
    """Collects changes until they are taken. Not thread-safe.

    Holds no more names than there are now and were when changes were last taken.
    """

    def __init__(self) -> None:
        self._added: dict[BlobName, None] = {}
        self._removed: dict[BlobName, None] = {}

    def bound(self, name: BlobName) -> None:
        """`name` is there now, and was not before."""
        if name in self._removed:
            del self._removed[name]
        else:
            self._added[name] = None

    def lost(self, name: BlobName) -> None:
        """`name` is not there any more."""
        if name in self._added:
            del self._added[name]
        else:
            self._removed[name] = None

    def take(self) -> CacheChanges:
        """The changes since the last call."""
        if not self._added and not self._removed:
            return NO_CHANGES
        changes = CacheChanges(tuple(self._added), tuple(self._removed))
        self._added, self._removed = {}, {}
        return changes
