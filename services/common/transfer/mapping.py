"""Shared-memory segments mapped into this process.

A mapping is let go of only when it is retired and no copy uses it: unmapping under a running
copy would crash the process. All bookkeeping belongs to one event loop; copies touch only the
bytes. Knows no service and no blobs.
"""

import asyncio
import ctypes
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from services.common.transfer.place import Bytes, SegmentId

_libc = ctypes.CDLL(None)  # its calls release the GIL; those of mmap objects do not
_MADV_POPULATE_WRITE = 23
_POPULATE_BYTES = 64 << 20


class Mapping:
    """One segment's bytes."""

    def __init__(self, path: str, *, writable: bool) -> None:
        """Maps the whole file. Raises OSError, FileNotFoundError where the segment is gone."""
        flags, protection = os.O_RDONLY, mmap.PROT_READ
        if writable:
            flags, protection = os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            mapped = mmap.mmap(descriptor, status.st_size, mmap.MAP_SHARED, protection)
        finally:
            os.close(descriptor)
        self.path = path
        self.size = status.st_size
        self._inode = status.st_ino
        self._bytes: Bytes | None = np.frombuffer(mapped, dtype=np.uint8)
        self._users = 0
        self._retired = False
        self._closed = asyncio.Event()

    @property
    def bytes(self) -> Bytes:
        """The segment's bytes; only between `pin` and `unpin`."""
        assert self._bytes is not None
        assert self._users > 0
        return self._bytes

    @property
    def closed(self) -> bool:
        """Whether the bytes are let go of."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Waits until a retired mapping's last copy ended."""
        await self._closed.wait()

    def is_stale(self) -> bool:
        """Whether the file behind the mapping was removed or replaced."""
        try:
            return Path(self.path).stat().st_ino != self._inode
        except OSError:
            return True

    def populate(self) -> None:
        """Maps all pages for writing, so that no copy pays for page faults.

        Takes about half a second for each GB: call it pinned, in a thread. Ends early when the
        mapping is retired, and does nothing where the kernel can't.
        """
        start = self.bytes.ctypes.data
        for offset in range(0, self.size, _POPULATE_BYTES):
            if self._retired:
                break
            length = min(_POPULATE_BYTES, self.size - offset)
            _libc.madvise(
                ctypes.c_void_p(start + offset), ctypes.c_size_t(length), _MADV_POPULATE_WRITE
            )

    def pin(self) -> None:
        """Keeps the bytes mapped until `unpin`."""
        assert self._bytes is not None
        self._users += 1

    def unpin(self) -> None:
        """Ends one use."""
        self._users -= 1
        self._close_if_done()

    def retire(self) -> None:
        """Lets go of the bytes as soon as nothing uses them. Idempotent."""
        self._retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._retired and self._users == 0 and self._bytes is not None:
            # The array owns the mapping: a copy thread may drop its last reference only now.
            self._bytes = None
            self._closed.set()


@dataclass(slots=True)
class ReaderMaps:
    """Read-only mappings of the segments that were read from lately."""

    _maps: dict[SegmentId, Mapping] = field(default_factory=dict)

    def pin(self, segment_id: SegmentId, path: str) -> Mapping:
        """The pinned mapping of a segment. Raises OSError where it can't be opened."""
        mapping = self._maps.get(segment_id)
        if mapping is None:
            mapping = self._maps[segment_id] = Mapping(path, writable=False)
        mapping.pin()
        return mapping

    def drop_stale(self) -> None:
        """Lets go of segments whose file is gone: their memory is ours alone by now."""
        for segment_id in [key for key, mapping in self._maps.items() if mapping.is_stale()]:
            self._maps.pop(segment_id).retire()

    def close(self) -> None:
        """Lets go of all."""
        for mapping in self._maps.values():
            mapping.retire()
        self._maps.clear()

    def __len__(self) -> int:
        return len(self._maps)
