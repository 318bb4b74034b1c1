"""What a supervisor that died without stopping its processes left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton.local.down import stop_leftovers, stop_supervised
from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir
from baton.local.state import Kind, Phase, ProcessState, State


@pytest.fixture
def run_dir(tmp_path):
    directory = RunDir(tmp_path / "run")
    directory.make()
    return directory


@pytest.fixture
def left():
    """A process that nobody supervises."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def write_state(run_dir: RunDir, process: "subprocess.Popen[bytes]", supervisor: ProcessIdentity):
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    one = ProcessState("a", Kind.ROUTER, identity.pid, identity.started, "", "", "", ready=True)
    state = State(supervisor, Phase.READY, "127.0.0.1:1", "tiny", 0.0, (one,))
    state.write(run_dir)
    assert State.read(run_dir) == state
    return state


def test_leftovers_of_a_dead_supervisor_are_stopped(run_dir, left):
    state = write_state(run_dir, left, ProcessIdentity(os.getpid(), "another time"))
    assert stop_leftovers(run_dir)
    assert left.wait(5) == -signal.SIGTERM
    assert not state.processes[0].identity.alive()
    assert State.read(run_dir) is None
    assert not stop_leftovers(run_dir)


def test_down_stops_them_too_and_then_nothing_runs(run_dir, left):
    state = write_state(run_dir, left, ProcessIdentity(os.getpid(), "another time"))
    assert stop_supervised(run_dir, 5.0) == state
    assert left.wait(5) == -signal.SIGTERM
    assert stop_supervised(run_dir, 5.0) is None


def test_what_a_living_supervisor_has_is_not_left_over(run_dir, left):
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    write_state(run_dir, left, own)
    assert not stop_leftovers(run_dir)
    assert left.poll() is None


def test_a_state_file_that_makes_no_sense_is_none(run_dir):
    for text in ("", "{}", "[]", '{"supervisor": 7}', '{"supervisor": {"pid": 1}}'):
        Path(run_dir.state).write_text(text)
        assert State.read(run_dir) is None
        assert stop_supervised(run_dir, 1.0) is None
