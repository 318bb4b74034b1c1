import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton import errors
from services.transfer import segments

SIZE = 1 << 16

HOLDER = """
import sys, time
from pathlib import Path
from services.transfer import segments
print(segments.create(Path(sys.argv[1]), 65536).path, flush=True)
time.sleep(60)
"""


def test_a_segment_is_allocated_whole_and_private(tmp_path: Path) -> None:
    segment = segments.create(tmp_path, SIZE)
    status = segment.path.stat()
    assert status.st_size == SIZE
    assert status.st_blocks * 512 >= SIZE
    assert status.st_mode & 0o777 == 0o600
    assert segment.segment_id in segment.path.name
    segment.remove()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(segment.descriptor)


def test_too_little_shared_memory_names_needed_and_available(tmp_path: Path) -> None:
    with pytest.raises(errors.Exhausted) as caught:
        segments.create(tmp_path, 1 << 60)
    assert str(1 << 60) in caught.value.message
    assert "available" in caught.value.message
    assert "Enlarge" in caught.value.message
    assert list(tmp_path.iterdir()) == []


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_memory_that_runs_out_while_allocating_leaves_nothing(tmp_path: Path) -> None:
    with file_size_limit(SIZE), pytest.raises(errors.Exhausted):
        segments.create(tmp_path, 2 * SIZE)
    assert list(tmp_path.iterdir()) == []


def test_only_dead_services_segments_are_stale(tmp_path: Path) -> None:
    alive = segments.create(tmp_path, SIZE)
    other = tmp_path / "other.kv"
    other.touch()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        theirs = Path(service.stdout.readline().strip())
        assert segments.remove_stale(tmp_path) == []
        service.kill()
        service.wait(10)
    assert segments.remove_stale(tmp_path) == [theirs]
    assert sorted(tmp_path.iterdir()) == sorted([alive.path, other])
    alive.remove()
