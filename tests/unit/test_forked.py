"""Processes that tests fork are as those that are started afresh."""

import os
import signal
import sys
import time

import pytest

from tests.support import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")


def start(tmp_path, *arguments):
    path = tmp_path / "log"
    with path.open("wb") as log:
        command = [sys.executable, "-P", "-m", "services.transfer", *arguments]
        return forked.start(command, log.fileno()), path


def test_it_has_its_own_arguments_log_and_exit_code(tmp_path):
    process, log = start(tmp_path, "--address=127.0.0.1:0", "--sweep-period-s=never")
    assert process.wait(30) == process.poll() == 2
    assert "--sweep-period-s" in log.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_signals_end_it_alone(tmp_path, number, code):
    ready = [tmp_path / name for name in "ab"]
    for path in ready:
        path.with_suffix(".segments").mkdir()
    flags = [[f"--segment-dir={path}.segments", f"--ready-file={path}"] for path in ready]
    (one, _), (other, _) = (start(tmp_path, "--address=127.0.0.1:0", *each) for each in flags)
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in ready):
        assert one.poll() is other.poll() is None
        assert time.monotonic() < deadline, "not ready in 60 s"
        time.sleep(0.02)
    assert os.getsid(one.pid) == one.pid != other.pid
    one.send_signal(number)
    assert one.wait(30) == code
    assert other.poll() is None
    other.kill()
    assert other.wait(30) == -signal.SIGKILL
