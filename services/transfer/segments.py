"""Segment files in shared memory.

All pages are allocated at creation, so that a full tmpfs is an error then and never a SIGBUS
later. The service holds a file lock on each of its segments as long as it lives; one that can
be locked belongs to a dead service. (A process id would not tell: containers that share
/dev/shm number their processes separately.)
"""

import errno
import fcntl
import logging
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from baton import errors
from services.common.transfer.place import SegmentId

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = "baton-", ".kv"
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment that exists; `remove` it once."""

    segment_id: SegmentId
    path: Path
    size_bytes: int
    descriptor: int
    """Open and locked."""

    def remove(self) -> None:
        """Unlinks the file. Who has it mapped keeps the memory until unmapping."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def create(directory: Path, size_bytes: int) -> SegmentFile:
    """Creates a segment; takes about a second for each few GB: call it in a thread.

    Raises Exhausted where there is not enough shared memory.
    """
    _require_room(directory, size_bytes)
    path, descriptor = _create_locked(directory)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        path.unlink()
        os.close(descriptor)
        if error.errno in _NO_ROOM:
            raise _no_room(directory, size_bytes) from error
        raise
    return SegmentFile(SegmentId(path.stem), path, size_bytes, descriptor)


def remove_stale(directory: Path) -> list[Path]:
    """Removes the segments of services that are dead; returns what was removed."""
    removed: list[Path] = []
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # gone already, someone else's, or its service lives
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed.append(path)
            finally:
                os.close(descriptor)
    return removed


def _create_locked(directory: Path) -> tuple[Path, int]:
    while True:
        path = directory / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Between these two calls another service that starts may take the file for stale.
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return path, descriptor
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _require_room(directory: Path, size_bytes: int) -> None:
    if _available_bytes(directory) < size_bytes:
        raise _no_room(directory, size_bytes)


def _available_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _no_room(directory: Path, size_bytes: int) -> errors.Exhausted:
    available = _available_bytes(directory)
    return errors.Exhausted(
        f"{directory} is too small: the worker's segment needs {size_bytes} bytes "
        f"({size_bytes / 2**20:.0f} MiB), {available} bytes ({available / 2**20:.0f} MiB) are "
        f"available. Enlarge {directory} (mount -o remount,size=..., docker run --shm-size, or "
        "the emptyDir's sizeLimit) or give the worker a smaller segment",
        reason="SHARED_MEMORY_TOO_SMALL",
    )
