"""Stops a Baton that another process supervises, and what a dead supervisor left."""

import signal
from collections.abc import Sequence

from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir
from baton.local.problem import Problem
from baton.local.state import State
from baton.local.supervisor import STOP_ORDER

_LEFTOVER_SECONDS = 5.0


def stop_supervised(run_dir: RunDir, timeout: float) -> State | None:
    """Stops the Baton of a directory; what ran there, None where nothing did.

    Raises Problem when its supervisor does not end within `timeout` seconds; then it and all
    its processes were killed.
    """
    state = State.read(run_dir)
    if state is None:
        return None
    supervisor = state.supervisor
    if not supervisor.alive():
        return state if stop_leftovers(run_dir) else None
    supervisor.signal(signal.SIGTERM)
    if supervisor.wait_gone(timeout):
        stop_leftovers(run_dir)
        return state
    state = State.read(run_dir) or state
    everyone = [supervisor, *(process.identity for process in state.processes)]
    for one in everyone:
        one.signal(signal.SIGKILL)
    _wait_all(everyone)
    run_dir.state.unlink(missing_ok=True)
    raise Problem(f"Baton (pid {supervisor.pid}) did not stop within {timeout:.0f} s; killed it")


def stop_leftovers(run_dir: RunDir) -> bool:
    """Stops what a supervisor left that died without stopping it; whether there was any."""
    state = State.read(run_dir)
    if state is None or state.supervisor.alive():
        return False
    left = [process for process in state.processes if process.identity.alive()]
    for kinds in STOP_ORDER:
        stage = [process.identity for process in left if process.kind in kinds]
        for one in stage:
            one.signal(signal.SIGTERM)
        _wait_all(stage)
    run_dir.state.unlink(missing_ok=True)
    return bool(left)


def _wait_all(processes: Sequence[ProcessIdentity]) -> None:
    for one in processes:
        if not one.wait_gone(_LEFTOVER_SECONDS):
            one.signal(signal.SIGKILL)
            one.wait_gone(_LEFTOVER_SECONDS)
