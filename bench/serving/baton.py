"""A Baton of real processes for a benchmark, started as a user would start it."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton.local.plan import free_port

START_S = 300.0
STOP_S = 120.0


@contextmanager
def running(options: Sequence[str]) -> Iterator[str]:
    """`baton up` with these options, in the background; the router's address. Stops it after."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as directory:
        where = [f"--grpc-port={port}", f"--run-dir={directory}"]
        _baton(["up", "--detach", *where, *options], START_S)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            _baton(["down", f"--run-dir={directory}"], STOP_S)


def _baton(arguments: Sequence[str], timeout_s: float) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "baton.cli", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        sys.exit(f"baton {arguments[0]} failed: {done.stdout}{done.stderr}")
