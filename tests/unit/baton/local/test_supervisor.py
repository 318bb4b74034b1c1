"""Real child processes: their readiness, death, end and logs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.local.child import ProcessSpec, describe_exit, log_tail
from baton.local.identity import ProcessIdentity
from baton.local.state import Kind
from baton.local.supervisor import ChildDied, Retired, Supervisor

SOON = 10.0
OBEDIENT = """
import signal, sys, time, pathlib
def end(*_):
    with open(sys.argv[2], "a") as file: file.write(sys.argv[3] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text("ready")
while True: time.sleep(0.01)
"""
DEAF = OBEDIENT.replace("signal.signal(signal.SIGTERM, end)", "signal.signal(15, signal.SIG_IGN)")


@pytest.fixture
def spec(tmp_path):
    """Makes specs of scripts."""

    def make(name, script=OBEDIENT, kind=Kind.DECODE, grace=5.0):
        ready = tmp_path / f"{name}.ready"
        arguments = (str(ready), str(tmp_path / "stopped"), name)
        return ProcessSpec(
            name=name,
            kind=kind,
            command=(sys.executable, "-I", "-S", "-c", script, *arguments),
            address="",
            grace=grace,
            log=tmp_path / f"{name}.log",
            ready_file=ready,
        )

    return make


@pytest.fixture
def supervise():
    """Supervisors that are stopped whatever happens."""
    made = []

    def make(*specs):
        made.append(Supervisor(specs))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.stop(hurry=lambda: True)


def wait(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_ready_once_all_are(spec, supervise):
    late = OBEDIENT.replace("pathlib.Path(sys", "time.sleep(0.3); pathlib.Path(sys")
    supervisor = supervise(spec("a"), spec("b", late))
    supervisor.start()
    wait(lambda: supervisor.child("a").ready())
    assert not supervisor.ready()
    wait(supervisor.ready)
    supervisor.check()
    assert [state.name for state in supervisor.states()] == ["a", "b"]
    assert all(state.identity.alive() for state in supervisor.states())


def test_an_old_ready_file_does_not_count(spec, supervise):
    one = spec("a", "import time; time.sleep(60)")
    one.ready_file.write_text("from last time")
    supervisor = supervise(one)
    supervisor.start()
    assert not supervisor.ready()


def test_whoever_needs_another_stops_before_it(spec, supervise, tmp_path):
    kinds = list(Kind)
    supervisor = supervise(*(spec(str(kind), kind=kind) for kind in kinds))
    supervisor.start()
    wait(supervisor.ready)
    assert supervisor.stop() == []
    order = (tmp_path / "stopped").read_text().split()
    assert order[:3] == ["planner", "gateway", "router"]
    assert set(order[3:5]) == {"prefill", "decode"}
    assert order[5:] == ["transfer", "valkey"]
    assert supervisor.stop() == []


def test_what_ignores_sigterm_is_killed_after_its_grace(spec, supervise):
    supervisor = supervise(spec("deaf", DEAF, grace=0.3), spec("good"))
    supervisor.start()
    wait(supervisor.ready)
    started = time.monotonic()
    assert supervisor.stop() == ["deaf"]
    assert 0.3 <= time.monotonic() - started < SOON
    assert supervisor.child("deaf").exit_code() == -signal.SIGKILL


def test_hurry_ends_the_grace(spec, supervise):
    supervisor = supervise(spec("deaf", DEAF, grace=60.0))
    supervisor.start()
    wait(supervisor.ready)
    started = time.monotonic()
    assert supervisor.stop(hurry=lambda: time.monotonic() > started + 0.2) == ["deaf"]
    assert time.monotonic() - started < SOON


def test_a_death_is_reported_with_its_last_words(spec, supervise):
    script = "import sys; print('\\n'.join(f'line {i}' for i in range(99))); sys.exit(7)"
    supervisor = supervise(spec("a", script), spec("b"))
    supervisor.start()
    wait(lambda: supervisor.child("a").exit_code() is not None)
    with pytest.raises(ChildDied) as died:
        supervisor.check()
    assert (died.value.name, died.value.code) == ("a", 7)
    text = str(died.value)
    assert text.startswith("a died (exit code 7)")
    assert text.endswith("line 98")
    assert "line 80" not in text


def test_a_command_that_is_not_there_dies_with_words(supervise, tmp_path):
    one = ProcessSpec("a", Kind.ROUTER, ("/no/such/program",), "", 1.0, tmp_path / "log", None)
    supervisor = supervise(one)
    supervisor.start()
    wait(lambda: supervisor.child("a").exit_code() is not None)
    with pytest.raises(ChildDied, match="cannot run /no/such/program"):
        supervisor.check()


def test_one_can_be_started_again(spec, supervise):
    supervisor = supervise(spec("a"))
    supervisor.start()
    wait(supervisor.ready)
    first = supervisor.child("a").pid
    supervisor.child("a").signal(signal.SIGKILL)
    assert supervisor.child("a").wait(SOON)
    supervisor.start_one("a")
    assert supervisor.child("a").pid != first
    wait(supervisor.ready)
    supervisor.check()


def test_one_more_can_be_started_and_ended_while_the_others_go_on(spec, supervise):
    supervisor = supervise(spec("a"))
    supervisor.start()
    supervisor.add(spec("b"))
    assert supervisor.running(Kind.DECODE) == ["a", "b"]
    wait(supervisor.ready)
    supervisor.retire("a")
    assert (supervisor.running(Kind.DECODE), supervisor.retiring(Kind.DECODE)) == (["b"], ["a"])
    assert [state.stopping for state in supervisor.states()] == [True, False]
    assert supervisor.child("a").wait(SOON)
    supervisor.check()  # its end is no failure
    assert supervisor.reap() == [Retired("a", 0, killed=False)]
    assert supervisor.reap() == []
    assert supervisor.started() == list(supervisor.specs) == ["b"]
    supervisor.add(spec("a"))  # its name is free again
    wait(lambda: supervisor.is_ready("a"))
    supervisor.child("a").signal(signal.SIGKILL)
    assert supervisor.child("a").wait(SOON)
    with pytest.raises(ChildDied, match="a died"):
        supervisor.check()


def test_what_outstays_its_grace_when_retired_is_killed_without_a_wait(spec, supervise):
    supervisor = supervise(spec("deaf", DEAF, grace=0.2), spec("good"))
    supervisor.start()
    wait(supervisor.ready)
    supervisor.retire("deaf")
    assert supervisor.reap() == []
    found = []
    wait(lambda: found.extend(supervisor.reap()) or found)
    assert found == [Retired("deaf", -signal.SIGKILL, killed=True)]
    supervisor.check()


def test_stopping_all_stops_what_is_retiring_too(spec, supervise):
    supervisor = supervise(spec("deaf", DEAF, grace=0.2), spec("good"))
    supervisor.start()
    wait(supervisor.ready)
    supervisor.retire("deaf")
    assert supervisor.stop() == ["deaf"]
    assert supervisor.child("good").exit_code() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
def test_children_die_with_their_supervisor(tmp_path):
    script = f"""
import sys, time
from pathlib import Path
from baton.local.child import Child, ProcessSpec
from baton.local.state import Kind
log = Path({str(tmp_path / "log")!r})
child = Child(ProcessSpec("a", Kind.ROUTER, ("sleep", "60"), "", 1.0, log, None))
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = ProcessIdentity.of(int(parent.stdout.readline()))
    assert child is not None
    # Until it is `sleep` it may not be tied yet.
    wait(lambda: b"sleep" in Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")[0])
    parent.kill()
    parent.wait(SOON)
    assert child.wait_gone(SOON)


def test_a_terminals_interrupt_does_not_reach_children(spec, supervise):
    supervisor = supervise(spec("a"))
    supervisor.start()
    assert os.getpgid(supervisor.child("a").pid) != os.getpgid(os.getpid())


def test_identity_outlives_no_process():
    process = subprocess.Popen(["sleep", "60"])
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    assert identity.alive()
    assert not ProcessIdentity(process.pid, "another time").alive()
    identity.signal(signal.SIGKILL)
    assert identity.wait_gone(SOON)  # a zombie counts as gone
    process.wait()
    identity.signal(signal.SIGTERM)
    assert ProcessIdentity.of(process.pid) is None


def test_exit_codes_in_words():
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "signal SIGKILL"
    assert describe_exit(-64) in ("signal SIGRTMAX", "signal 64")


def test_the_tail_of_a_huge_log_is_its_end(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xff" * 100_000 + b"\nthe end\n")
    assert log_tail(path, 1) == "the end"
