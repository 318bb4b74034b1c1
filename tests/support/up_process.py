"""`baton up` as a process, over fake services."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir
from baton.local.plan import free_port
from baton.local.state import Phase, State

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "support" / "fake_services"
SOON = 30.0


class UpProcess:
    """Runs commands in a home of their own, on a port of their own."""

    def __init__(self, home: Path, *, fakes: bool = True) -> None:
        home.mkdir(exist_ok=True)
        self.port = free_port()
        self.http_port = free_port()
        self.run_dir = home / "run"
        self.model = home / "tiny.gguf"
        self.model.write_bytes(b"GGUF")
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "COLUMNS": "200",
        }
        if fakes:
            self.environment["PYTHONPATH"] = f"{FAKES}:{ROOT}"
        self._started: list[subprocess.Popen[str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def behave(self, **behaviours: dict[str, object]) -> None:
        """Scripts the fake services, by process name with `_` for `-`."""
        scripts = {name.replace("_", "-"): script for name, script in behaviours.items()}
        self.environment["FAKE_SERVICES"] = json.dumps(scripts)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Starts a `baton` command."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "baton.cli", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs a `baton` command to its end."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=SOON)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def up_arguments(self, *arguments: str) -> list[str]:
        return [
            *("up", f"--model={self.model}", f"--grpc-port={self.port}"),
            f"--http-port={self.http_port}",
            *(f"--run-dir={self.run_dir}", "--shared-memory=1MiB", *arguments),
        ]

    def up(self, *arguments: str) -> "subprocess.Popen[str]":
        return self.start(*self.up_arguments(*arguments))

    def state(self) -> State | None:
        return State.read(RunDir(self.run_dir))

    def wait_phase(self, phase: Phase = Phase.READY) -> State:
        """Waits until the state file says so."""
        deadline = time.monotonic() + SOON
        while (state := self.state()) is None or state.phase is not phase:
            assert time.monotonic() < deadline, f"never {phase}: {state}"
            time.sleep(0.02)
        return state

    def stop_order(self) -> list[str]:
        """Fake services in the order in which they ended."""
        return (self.run_dir / "marks" / "stopped").read_text().split()

    def clean_up(self) -> None:
        """Leaves nothing running."""
        state = self.state()
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for one in [] if state is None else [state.supervisor, *identities(state)]:
            one.signal(signal.SIGKILL)


def identities(state: State) -> list[ProcessIdentity]:
    return [process.identity for process in state.processes]


def assert_all_gone(state: State) -> None:
    left = [process.name for process in state.processes if not process.identity.wait_gone(5.0)]
    assert not left, f"still running: {left}"
