"""Loading shows its progress and stops when told to."""

import asyncio
import logging
import time

import pytest

from services.worker.loading import LoadStopped, Progress, load_engine


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_progress_goes_to_log_and_file_at_most_ten_times_a_second(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    file, clock = tmp_path / "progress", Clock()
    progress = Progress(str(file), clock)
    progress(10, 100)
    assert file.read_text() == "10 100"
    clock.now = 0.05
    progress(20, 100)
    assert file.read_text() == "10 100"
    clock.now = 0.11
    progress(30, 100)
    assert file.read_text() == "30 100"
    progress(100, 100)
    assert file.read_text() == "100 100"
    assert [line.getMessage() for line in caplog.records] == [
        "progress 10/100", "progress 30/100", "progress 100/100",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


async def test_a_loaded_engine_is_returned():
    assert (
        await load_engine(lambda progress: progress(1, 2) or "it", Progress(""), asyncio.Event())
        == "it"
    )


async def test_loading_ends_soon_after_the_process_is_told_to_stop():
    stop = asyncio.Event()

    def load(progress):
        for done in range(1000):
            progress(done, 1000)
            time.sleep(0.01)
        pytest.fail("loaded to the end")

    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(LoadStopped):
        await asyncio.wait_for(load_engine(load, Progress(""), stop), 3)


async def test_what_loading_raises_comes_through():
    def load(_progress):
        raise OSError("model.gguf: truncated")

    with pytest.raises(OSError, match="truncated"):
        await load_engine(load, Progress(""), asyncio.Event())
