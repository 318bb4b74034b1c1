import os
import subprocess
import sys

import pytest

from baton import errors
from services.transfer.liveness import watch_process


def test_a_living_process_is_not_gone() -> None:
    assert not watch_process(os.getpid())()


def test_an_ended_process_is_gone_even_before_its_parent_noticed() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        is_gone = watch_process(process.pid)
        assert not is_gone()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone()  # a zombie
        process.wait(10)
        assert is_gone()


def test_a_process_that_cannot_be_seen_is_refused() -> None:
    with pytest.raises(errors.LayoutMismatch, match="process namespace"):
        watch_process(2**31 - 1)
