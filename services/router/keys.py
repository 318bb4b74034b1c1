"""The API keys that the router accepts: given as lines, or in a file that is read again when it
changes.

Only hashes are known here. A key is looked up by its hash, so how long that takes tells nothing
of any key. A broken new file changes nothing: what was known stays, and the log has the number of
the line. Knows no methods and no requests.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from baton.keys import KeyLineError, Owner, digest_of, looks_like_lines, parse_lines

log = logging.getLogger(__name__)

CHECK_S = 1.0
_MAX_KEY_CHARACTERS = 256

_Stamp = tuple[int, int, int]
"""By which a file is known to be another than before."""


class Keys:
    """Belongs to one event loop. Without a source there are no keys, and none is needed."""

    def __init__(self, source: str, check_s: float = CHECK_S) -> None:
        """`source`: a file's name, or lines as in such a file."""
        self.required = bool(source.strip())
        lines = looks_like_lines(source)
        self._path = Path(source) if self.required and not lines else None
        self._lines = source if lines else ""
        self._check_s = check_s
        self._owners: Mapping[str, Owner] = {}
        self._stamp: _Stamp | None = None
        self._failure = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads the keys, and the file again in the background. Raises OSError where they can't
        be used."""
        if self._path is None:
            try:
                self._owners = parse_lines(self._lines)
            except KeyLineError as error:
                raise OSError(f"--api-keys: {error}") from error
            return
        try:
            await self._read(self._path)
        except (OSError, ValueError) as error:
            raise OSError(f"--api-keys {self._path}: {_why(error)}") from error
        self._task = asyncio.create_task(self._watch(self._path))

    async def close(self) -> None:
        """Stops looking at the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def owner(self, key: str) -> Owner | None:
        """None: there is no such key."""
        if not 0 < len(key) <= _MAX_KEY_CHARACTERS:
            return None
        return self._owners.get(digest_of(key))

    def __len__(self) -> int:
        return len(self._owners)

    async def _watch(self, path: Path) -> None:
        while True:
            await asyncio.sleep(self._check_s)
            try:
                await self._read(path)
                self._failure = ""
            except (OSError, ValueError) as error:
                self._keep(_why(error))

    async def _read(self, path: Path) -> None:
        """Nothing where the file is as it was, broken or not."""
        stamp = await asyncio.to_thread(_stamp, path)
        if stamp == self._stamp:
            return
        known = self._stamp is not None
        text = await asyncio.to_thread(path.read_text, "utf-8")
        self._stamp = stamp
        self._owners = await asyncio.to_thread(parse_lines, text)  # there may be many
        if known:
            log.info("%d API keys are in force", len(self._owners))

    def _keep(self, why: str) -> None:
        if why != self._failure:
            log.warning("the API keys stay as they were: %s: %s", self._path, why)
        self._failure = why


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    return getattr(error, "strerror", None) or str(error)
