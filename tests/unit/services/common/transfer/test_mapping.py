import asyncio
import os
import platform
import tempfile
from pathlib import Path

import pytest

from services.common.transfer.mapping import Mapping, ReaderMaps
from services.common.transfer.place import SegmentId

ID = SegmentId("s")
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    fill(path, 1)
    return path


def fill(path: Path, byte: int) -> None:
    path.write_bytes(bytes([byte]) * 4096)


def first_byte(path: Path) -> int:
    return path.read_bytes()[0]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_retired_mapping_stays_until_its_last_use_ended(path: Path) -> None:
    before = open_files()
    mapping = Mapping(str(path), writable=True)
    mapping.pin()
    mapping.retire()
    assert not mapping.closed
    mapping.bytes[0] = 7
    mapping.unpin()
    assert mapping.closed
    async with asyncio.timeout(1):
        await mapping.wait_closed()
    assert first_byte(path) == 7
    assert open_files() == before


@pytest.mark.skipif(KERNEL < (5, 14), reason="populating needs Linux 5.14")
async def test_populating_maps_all_pages_and_changes_none() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        file.write(b"kept")
        file.flush()
        mapping = Mapping(file.name, writable=True)
        mapping.pin()
        assert resident_bytes(file.name) == 0
        mapping.populate()
        assert resident_bytes(file.name) == 1 << 20
        assert mapping.bytes[:4].tobytes() == b"kept"
        mapping.unpin()


async def test_populating_ends_when_the_mapping_is_retired(path: Path) -> None:
    mapping = Mapping(str(path), writable=True)
    mapping.pin()
    mapping.retire()
    mapping.populate()
    assert resident_bytes(str(path)) == 0
    mapping.unpin()


def resident_bytes(path: str) -> int:
    """Bytes of a file's mapping that this process has page-table entries for."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(path):
            rss = next(line for line in lines if line.startswith("Rss:"))
            return int(rss.split()[1]) * 1024
    raise AssertionError(f"{path} is not mapped")


async def test_readers_cannot_write(path: Path) -> None:
    maps = ReaderMaps()
    mapping = maps.pin(ID, str(path))
    assert mapping.bytes[4095] == 1
    with pytest.raises(ValueError, match="read-only"):
        mapping.bytes[0] = 7
    mapping.unpin()
    maps.close()


async def test_a_segment_is_mapped_once(path: Path) -> None:
    maps = ReaderMaps()
    assert maps.pin(ID, str(path)) is maps.pin(ID, str(path))
    assert len(maps) == 1


@pytest.mark.parametrize("change", ["removed", "replaced"])
async def test_a_stale_mapping_is_dropped_when_no_longer_used(path: Path, change: str) -> None:
    maps = ReaderMaps()
    mapping = maps.pin(ID, str(path))
    maps.drop_stale()
    assert len(maps) == 1
    os.rename(path, path.with_suffix(".old"))
    if change == "replaced":
        fill(path, 2)
    maps.drop_stale()
    assert len(maps) == 0
    assert mapping.bytes[0] == 1  # a running copy is not disturbed
    mapping.unpin()
    assert mapping.closed


async def test_a_segment_that_is_gone_is_an_error(tmp_path: Path) -> None:
    before = open_files()
    maps = ReaderMaps()
    with pytest.raises(FileNotFoundError):
        maps.pin(ID, str(tmp_path / "none"))
    assert len(maps) == 0
    assert open_files() == before
