"""One run of a local Baton: looked over, started, watched, stopped; here or in the background.

Knows no terminal: what there is to see goes to a `View`.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Protocol

from baton import errors
from baton.client import Client
from baton.local import preflight
from baton.local.child import log_tail
from baton.local.down import stop_leftovers
from baton.local.identity import ProcessIdentity
from baton.local.model import Say, ServedModel, resolve_model
from baton.local.options import UpOptions
from baton.local.plan import Plan, available_cores, free_port, make_plan
from baton.local.pools import Pools
from baton.local.problem import Problem
from baton.local.replicas import Replicas, Wanted
from baton.local.state import AlreadyLocked, Kind, Phase, State, locked
from baton.local.supervisor import Supervisor

_SLEEP_SECONDS = 0.05
_POLL_SECONDS = 0.1
_WATCH_SECONDS = 0.25
_FLEET_SECONDS = 2.0
_ERROR_MARK = "baton: "


class View(Protocol):
    """Shows how far a Baton is."""

    def update(self, state: State) -> None:
        """Called several times a second until all is ready."""


class Interrupted(Exception):
    """Someone asked to stop before all was ready."""


class Patience:
    """Requests to stop, from signal handlers: the first one ends, the second one hurries.

    No locks: a handler runs amid whatever its thread does, which may hold them.
    """

    def __init__(self) -> None:
        self._times = 0

    def ask(self) -> None:
        """Asks to stop; may be called from a signal handler."""
        self._times += 1

    def wait(self, timeout: float) -> bool:
        """Waits until someone asks; False when no one does."""
        deadline = time.monotonic() + timeout
        while not self._times and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SLEEP_SECONDS))
        return self._times > 0

    def lost(self) -> bool:
        """Whether someone asked again."""
        return self._times > 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """Options that can be run."""

    options: UpOptions
    model: ServedModel
    plan: Plan


@contextlib.contextmanager
def reserved(options: UpOptions) -> Iterator[None]:
    """Holds the run directory. Raises Problem where a Baton runs already."""
    try:
        with locked(options.run_dir):
            yield
    except AlreadyLocked:
        state = State.read(options.run_dir)
        pid = f" (pid {state.supervisor.pid})" if state else ""
        raise Problem(
            f"Baton is already running on port {options.grpc_port}{pid}. "
            "`baton status` shows it, `baton down` stops it"
        ) from None


def prepare(options: UpOptions, say: Say) -> Prepared:
    """Looks whether all that is needed is there; to be called in `reserved`. Raises Problem."""
    preflight.check_packages(options)
    options.guard.check(options.host)
    preflight.check_planner(options)
    preflight.check_hosts(options)
    preflight.check_chat_template(options)
    stop_leftovers(options.run_dir)
    preflight.check_ports(options)
    preflight.check_shared_memory(options)
    preflight.check_memory(options)
    valkey = None
    if options.redis is None:
        valkey = preflight.find_valkey()
    else:
        preflight.check_redis(options.redis)
    model = resolve_model(options.model, options.name, say)
    plan = make_plan(options, model, valkey=valkey, cores=available_cores(), free_port=free_port)
    return Prepared(options, model, plan)


class Run:
    """A Baton that this process supervises; to be used in `reserved`, on one thread."""

    def __init__(self, prepared: Prepared, say: Say) -> None:
        """`say` hears what changes after the start."""
        self._options = prepared.options
        self._model = prepared.model
        self.supervisor = Supervisor(prepared.plan.specs)
        replicas = prepared.options.run_dir.replicas
        self._pools = Pools(replicas, prepared.plan, self.supervisor, say)
        self._own = ProcessIdentity.of(os.getpid())
        self._phase = Phase.STARTING
        self._since = time.time()
        self._written: State | None = None

    def start(self) -> None:
        """Starts all processes with empty logs."""
        for spec in self.supervisor.specs.values():
            spec.log.unlink(missing_ok=True)
        self._options.run_dir.replicas.unlink(missing_ok=True)
        if self._options.planner:
            first = Wanted(self._options.prefill_workers), Wanted(self._options.decode)
            Replicas(*first).write(self._options.run_dir.replicas)
        self.supervisor.start()

    def until_ready(self, view: View, patience: Patience) -> State:
        """Waits until every router knows every worker. Raises ChildDied or Interrupted."""
        while not (self.supervisor.ready() and self._complete()):
            self.supervisor.check()
            view.update(self._tell())
            if patience.wait(_POLL_SECONDS):
                raise Interrupted
        self._phase = Phase.READY
        state = self._tell()
        view.update(state)
        return state

    def watch(self, patience: Patience) -> None:
        """Waits until someone asks to stop; keeps as many workers as a planner wants. Raises
        ChildDied."""
        while not patience.wait(_WATCH_SECONDS):
            self.supervisor.check()
            if self._options.planner:
                self._pools.reconcile()
                with contextlib.suppress(OSError):  # a full disk is no reason to stop serving
                    self._tell()

    def stop(self, patience: Patience) -> list[str]:
        """Stops all in order; the names of those that it had to kill."""
        self._phase = Phase.STOPPING
        with contextlib.suppress(OSError):  # stopping matters more than telling of it
            self._tell()
        killed = self.supervisor.stop(hurry=patience.lost)
        self._options.run_dir.state.unlink(missing_ok=True)
        self._options.run_dir.replicas.unlink(missing_ok=True)
        return killed

    def _tell(self) -> State:
        assert self._own is not None, "this process runs"
        state = State(
            supervisor=self._own,
            phase=self._phase,
            address=self._options.address,
            model=self._model.name,
            since=self._since,
            processes=self.supervisor.states(),
        )
        if state != self._written:
            state.write(self._options.run_dir)
            self._written = state
        return state

    def _complete(self) -> bool:
        states = self.supervisor.states()
        pids = {state.pid for state in states if state.kind in (Kind.PREFILL, Kind.DECODE)}
        routers = [state.address for state in states if state.kind is Kind.ROUTER]
        return all(self._complete_at(self._options.reachable(one), pids) for one in routers)

    def _complete_at(self, address: str, pids: Set[int]) -> bool:
        with self._options.guard.client(address) as client:
            return fleet_complete(client, pids)


def fleet_complete(client: Client, pids: Set[int]) -> bool:
    """Whether the router answers, knows the workers of these pids, and has answers of them. That
    it answers must do where the client has no operator's key."""
    try:
        fleet = client.fleet(timeout=_FLEET_SECONDS)
    except (errors.Unauthenticated, errors.PermissionDenied):
        return True
    except errors.BatonError:
        return False
    answering = {worker.record.pid for worker in fleet.workers if worker.HasField("status")}
    return pids <= answering


class Detached:
    """A Baton whose supervisor runs in the background: a copy of this program."""

    def __init__(self, options: UpOptions) -> None:
        self._run_dir = options.run_dir
        self._run_dir.make()
        self._run_dir.state.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "baton.cli", "up", *options.arguments()]
        with self._run_dir.supervisor_log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def until_ready(self, view: View, patience: Patience) -> State:
        """Waits until all is ready. Raises Problem with its last words, or Interrupted."""
        while True:
            state = State.read(self._run_dir)
            if state is not None and state.supervisor.pid == self._process.pid:
                view.update(state)
                if state.phase is Phase.READY:
                    return state
            if self._process.poll() is not None:
                raise Problem(_last_words(log_tail(self._run_dir.supervisor_log, 60)))
            if patience.wait(_POLL_SECONDS):
                self._process.terminate()
                self._process.wait()
                raise Interrupted


def _last_words(log: str) -> str:
    """A supervisor's error without what it said before."""
    return log[max(0, log.find(_ERROR_MARK)) :].removeprefix(_ERROR_MARK)
