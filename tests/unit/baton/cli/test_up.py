"""`baton up` and `baton down` as people run them, over fake services."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir
from baton.local.replicas import Replicas, Wanted
from baton.local.state import Kind, Phase
from tests.support.fake_router import FakeRouter
from tests.support.up_process import SOON, UpProcess, assert_all_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def baton(tmp_path):
    process = UpProcess(tmp_path)
    yield process
    process.clean_up()


def end(process):
    """Output of a process that is about to end."""
    out, err = process.communicate(timeout=SOON)
    assert "Traceback" not in err, err
    return out, err


def test_up_says_where_it_serves_and_ctrl_c_stops_everything_in_order(baton):
    process = baton.up("--prefill=2", "--threads=3")
    state = baton.wait_phase()
    names = [one.name for one in state.processes]
    workers = ["prefill-0", "prefill-1", "decode-0"]
    assert names == ["valkey", "transfer", *workers, "router", "gateway"]
    process.send_signal(signal.SIGINT)
    out, err = end(process)
    assert process.returncode == 0
    assert err == "stopping\n"
    assert f"Baton serves tiny (bfloat16) at {baton.address}" in out
    for one in state.processes:
        assert f"{one.name} ready after" in out
        assert str(one.pid) in out
        assert one.address in out
    assert str(baton.run_dir / "logs") in out
    assert_all_gone(state)
    order = baton.stop_order()
    assert order[:2] == ["gateway", "router"]
    assert set(order[2:5]) == {"prefill-0", "prefill-1", "decode-0"}
    assert order[5] == "transfer"
    assert baton.state() is None
    for name in names:
        assert (baton.run_dir / "logs" / f"{name}.log").stat().st_size > 0


def test_several_routers_all_serve_and_are_shown(baton):
    process = baton.up("--routers=2")
    state = baton.wait_phase()
    routers = [one for one in state.processes if one.kind is Kind.ROUTER]
    assert [one.name for one in routers] == ["router-0", "router-1"]
    assert routers[0].address == baton.address
    for one in routers:
        assert baton.run("status", f"--address={one.address}").returncode == 0
    process.send_signal(signal.SIGINT)
    out, _ = end(process)
    assert all(re.search(rf"{one.name} +{one.address} ", out) for one in routers)
    assert_all_gone(state)
    assert set(baton.stop_order()[1:3]) == {"router-0", "router-1"}


def wait_for(baton, condition):
    """Waits until the state file tells of processes as they should be."""
    deadline = time.monotonic() + SOON
    while not condition(state := baton.state()):
        assert time.monotonic() < deadline, state
        time.sleep(0.02)
    return state


def workers(state):
    return [one for one in state.processes if one.kind in (Kind.PREFILL, Kind.DECODE)]


def test_workers_come_and_go_as_the_planner_wants(baton):
    process = baton.up("--planner", "--max-decode=3")
    state = baton.wait_phase()
    replicas = RunDir(baton.run_dir).replicas
    assert Replicas.read(replicas) == Replicas(Wanted(1), Wanted(1))
    assert [one.kind for one in state.processes][-1] is Kind.PLANNER
    Replicas(Wanted(2, why="prompts wait"), Wanted(3)).write(replicas)
    all_of_them = {"prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"}
    state = wait_for(
        baton, lambda state: {one.name for one in workers(state) if one.ready} == all_of_them
    )
    flags = (f"--address={baton.address}", f"--run-dir={baton.run_dir}")
    status = baton.run("status", *flags).stdout
    assert re.search(r"^ *planner +planner +\d+ +127.0.0.1:\d+ +ok", status, re.MULTILINE)
    assert "wanted: 2 prefill, 2 ready (prompts wait); 3 decode, 3 ready" in status

    Replicas(Wanted(1), Wanted(1, ("decode-0", "decode-2"))).write(replicas)
    left = {"prefill-0", "decode-1"}
    state = wait_for(baton, lambda state: {one.name for one in workers(state)} == left)
    assert set(baton.stop_order()) == all_of_them - left

    process.send_signal(signal.SIGINT)
    out, err = end(process)
    assert process.returncode == 0
    assert_all_gone(state)
    assert baton.stop_order()[3:5] == ["planner", "gateway"]
    assert not replicas.exists()
    assert "prefill up to 2, decode up to 3" in out
    for line in (
        "starting prefill-1: prompts wait",
        "starting decode-2",
        "stopping decode-0",
        "decode-0 stopped",
    ):
        assert line in err.splitlines()
    assert re.search(r"^decode-1 ready after \d+\.\d s$", err, re.MULTILINE)
    assert "died" not in err


def test_a_further_worker_that_dies_is_a_failure_as_any(baton):
    baton.behave(decode_1={"exit_code": 3})
    process = baton.up("--planner")
    state = baton.wait_phase()
    Replicas(Wanted(1), Wanted(2)).write(RunDir(baton.run_dir).replicas)
    _, err = end(process)
    assert process.returncode == 1
    assert "baton: decode-1 died (exit code 3)" in err
    assert_all_gone(state)


def test_a_planner_is_not_for_nothing(baton):
    done = baton.run(*baton.up_arguments("--planner", "--aggregated"))
    assert done.returncode == 1
    assert "there are none to prefill" in done.stderr
    done = baton.run(*baton.up_arguments("--max-decode=2"))
    assert done.stderr.startswith("baton: --max-decode is for --planner")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(baton, number):
    process = baton.up()
    state = baton.wait_phase()
    process.send_signal(number)
    end(process)
    assert process.returncode == 0
    assert_all_gone(state)


def test_ctrl_c_while_starting(baton):
    baton.behave(decode_0={"slow": 60})
    process = baton.up()
    state = baton.wait_phase(Phase.STARTING)
    process.send_signal(signal.SIGINT)
    _, err = end(process)
    assert process.returncode == 130
    assert err == "stopping\n"
    assert_all_gone(state)


def test_a_second_ctrl_c_hurries(baton):
    baton.behave(decode_0={"deaf": True})
    process = baton.up("--grace=60")
    state = baton.wait_phase()
    process.send_signal(signal.SIGINT)
    baton.wait_phase(Phase.STOPPING)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = end(process)
    assert time.monotonic() - started < SOON
    assert re.search("had to kill .*decode-0", err)
    assert_all_gone(state)


def test_a_child_that_dies_while_starting_is_named(baton):
    baton.behave(prefill_0={"exit_code": 3, "after": 0.3})
    process = baton.up()
    state = baton.wait_phase(Phase.STARTING)
    _, err = end(process)
    assert process.returncode == 1
    assert err.startswith("baton: prefill-0 died (exit code 3)")
    assert "prefill-0 has had enough" in err
    assert_all_gone(state)


def test_a_child_that_dies_later_ends_it(baton):
    process = baton.up()
    state = baton.wait_phase()
    (victim,) = [one for one in state.processes if one.name == "decode-0"]
    os.kill(victim.pid, signal.SIGKILL)
    _, err = end(process)
    assert process.returncode == 1
    assert err.startswith("baton: decode-0 died (signal SIGKILL)")
    assert "decode-0 starts with" in err
    assert_all_gone(state)


def test_a_killed_supervisor_leaves_no_children(baton):
    process = baton.up()
    state = baton.wait_phase()
    process.kill()
    process.communicate()
    assert_all_gone(state)
    again = baton.up()
    assert baton.wait_phase().supervisor.pid in (again.pid, state.supervisor.pid)
    again.send_signal(signal.SIGINT)
    end(again)


def test_nobody_reading_its_output_does_not_keep_it_from_stopping(baton):
    process = baton.up()
    state = baton.wait_phase()
    assert process.stdout is not None
    assert process.stderr is not None
    while "Ctrl-C stops it" not in process.stdout.readline():  # all is said that is said at first
        assert process.poll() is None
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(SOON) == 0
    assert_all_gone(state)
    assert baton.stop_order()[:2] == ["gateway", "router"]
    assert baton.state() is None


def test_already_running(baton):
    baton.up()
    state = baton.wait_phase()
    second = baton.run(*baton.up_arguments())
    assert second.returncode == 1
    assert f"already running on port {baton.port} (pid {state.supervisor.pid})" in second.stderr
    assert baton.state() == state


def test_port_taken_starts_nothing(baton):
    with socket.create_server(("127.0.0.1", baton.port)):
        done = baton.run(*baton.up_arguments())
    assert done.returncode == 1
    assert f"port {baton.port} is taken by another program" in done.stderr
    with FakeRouter(address=baton.address):
        done = baton.run(*baton.up_arguments())
    assert f"port {baton.port} is taken by a Baton that serves tiny" in done.stderr
    assert not list((baton.run_dir / "logs").iterdir())


def test_plain_words_for_what_is_missing(baton):
    done = baton.run("up", f"--grpc-port={baton.port}", "--model=/nowhere/at-all")
    assert done.returncode == 1
    assert done.stderr.startswith("baton: there is no model at /nowhere/at-all")
    assert done.stderr.count("\n") == 1
    done = baton.run(*baton.up_arguments("--redis=redis://127.0.0.1:9/0"))
    assert done.returncode == 1
    assert done.stderr.startswith("baton: no Redis answers at redis://127.0.0.1:9/0")
    done = baton.run(*baton.up_arguments("--shared-memory=900000GiB"))
    assert done.returncode == 1
    assert done.stderr.startswith("baton: /dev/shm is too small")
    done = baton.run(*baton.up_arguments("--kv-memory=elephant"))
    assert done.returncode == 2
    assert "is not a size" in done.stderr


def test_a_run_dir_that_cannot_be_made_is_named(baton):
    (baton.run_dir.parent / "file").write_text("")
    taken = baton.run_dir.parent / "file" / "run"
    _, err = end(baton.up(f"--run-dir={taken}"))
    assert f"baton: cannot keep logs and state in {taken}: Not a directory" in err


def test_a_given_redis_is_used_and_left_alone(baton, tmp_path):
    other = UpProcess(tmp_path / "other")
    try:
        other.up()
        (valkey,) = [one for one in other.wait_phase().processes if one.name == "valkey"]
        process = baton.up(f"--redis={valkey.address}")
        state = baton.wait_phase()
        assert "valkey" not in [one.name for one in state.processes]
        log = (baton.run_dir / "logs" / "router.log").read_text()
        assert f"--redis={valkey.address}" in log
        process.send_signal(signal.SIGINT)
        end(process)
        assert valkey.identity.alive()
    finally:
        other.clean_up()


def test_detach_returns_when_ready_and_down_stops_it(baton):
    done = baton.run(*baton.up_arguments("--detach"))
    assert done.returncode == 0, done.stderr
    assert f"Baton serves tiny (bfloat16) at {baton.address}" in done.stdout
    assert f"baton down --run-dir {baton.run_dir}" in done.stdout
    state = baton.state()
    assert state is not None
    assert state.phase is Phase.READY
    assert state.supervisor.alive()
    assert baton.run("status", "--address", baton.address).returncode == 0
    down = baton.run("down", f"--run-dir={baton.run_dir}")
    assert (down.returncode, down.stdout) == (0, f"stopped Baton at {baton.address}\n")
    assert not state.supervisor.alive()
    assert_all_gone(state)
    assert baton.stop_order()[:2] == ["gateway", "router"]
    again = baton.run("down", f"--run-dir={baton.run_dir}")
    assert again.returncode == 0
    assert "not running" in again.stdout


def test_detach_without_a_run_dir_is_found_by_its_port(baton):
    arguments = [one for one in baton.up_arguments("--detach") if "--run-dir" not in one]
    assert baton.run(*arguments).returncode == 0
    down = baton.run("down", f"--grpc-port={baton.port}")
    assert down.stdout == f"stopped Baton at {baton.address}\n"


def test_detach_reports_what_went_wrong(baton):
    baton.behave(decode_0={"exit_code": 4})
    done = baton.run(*baton.up_arguments("--detach"))
    assert done.returncode == 1
    assert done.stderr.startswith("baton: decode-0 died (exit code 4)")
    assert "decode-0 has had enough" in done.stderr
    assert baton.state() is None


def test_ctrl_c_on_detach_stops_what_it_started(baton):
    baton.behave(decode_0={"slow": 60})
    process = baton.up("--detach")
    state = baton.wait_phase(Phase.STARTING)
    process.send_signal(signal.SIGINT)
    end(process)
    assert process.returncode == 130
    assert state.supervisor.wait_gone(SOON)
    assert_all_gone(state)


def test_down_kills_what_does_not_stop(baton):
    baton.behave(router={"deaf": True})
    assert baton.run(*baton.up_arguments("--detach", "--grace=60")).returncode == 0
    state = baton.state()
    assert state is not None
    down = baton.run("down", f"--run-dir={baton.run_dir}", "--timeout=0.5")
    assert down.returncode == 1
    assert "did not stop within" in down.stderr
    assert not state.supervisor.alive()
    assert_all_gone(state)


def test_down_does_not_touch_a_process_that_took_the_pid_over(baton):
    """The state file names this test's pid with another start time."""
    process = baton.up()
    state = baton.wait_phase()
    process.send_signal(signal.SIGINT)
    end(process)
    foreign = replace(state, supervisor=ProcessIdentity(os.getpid(), "another time"))
    foreign.write(RunDir(baton.run_dir))
    down = baton.run("down", f"--run-dir={baton.run_dir}")
    assert "not running" in down.stdout


def test_a_terminal_sees_bars(baton):
    """On a pseudo-terminal, with slow loading, as a person would see it."""
    baton.behave(decode_0={"slow": 1.0})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "baton.cli", *baton.up_arguments()],
        env={**baton.environment, "TERM": "xterm", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        while b"Ctrl-C stops it" not in seen:
            seen += terminal.read(65536)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            try:
                seen += terminal.read(65536)
            except OSError:  # the other end has closed
                break
    assert process.wait(SOON) == 0
    assert b"decode-0" in seen
    assert b"loaded 512 B of 1 KiB" in seen
    assert b"ready" in seen
