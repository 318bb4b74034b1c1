"""One fake service process.

FAKE_SERVICES is JSON, by process name: `exit_code` ends it after `after` seconds (0 at first),
`deaf` makes it ignore SIGTERM, `slow` delays readiness by so many seconds.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from baton.v1 import worker_pb2
from tests.support.fake_router import FakeRouter

ROLES = {"prefill": worker_pb2.WORKER_ROLE_PREFILL, "decode": worker_pb2.WORKER_ROLE_DECODE}


def run(kind: str) -> None:
    flags = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    ready_file = Path(flags["--ready-file"])
    name, marks = ready_file.stem, ready_file.parent
    behaviour = json.loads(os.environ.get("FAKE_SERVICES", "{}")).get(name, {})
    sys.stderr.write(f"{name} starts with {' '.join(sys.argv[1:])}\n")
    sys.stderr.flush()
    asked: list[int] = []  # a handler must not take locks
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    (marks / f"{name}.pid").write_text(f"{os.getpid()} {kind} {flags['--address']}")
    if "--progress-file" in flags:
        Path(flags["--progress-file"]).write_text("512 1024")
    server = FakeRouter(address=flags["--address"]) if kind == "router" else None
    with server if server is not None else contextlib.nullcontext():
        time.sleep(behaviour.get("slow", 0))
        if behaviour.get("exit_code") is not None:
            time.sleep(behaviour.get("after", 0))
            sys.stderr.write(f"{name} has had enough\n")
            sys.exit(behaviour["exit_code"])
        ready_file.write_text(flags["--address"])
        while not asked or behaviour.get("deaf"):
            time.sleep(0.02)
            if server is not None:
                know_workers(server, marks)
    with (marks / "stopped").open("a") as file:
        file.write(f"{name}\n")


def know_workers(server: FakeRouter, marks: Path) -> None:
    """Lists the processes that left their pids, as a fleet would."""
    known = {worker.record.pid for worker in server.fleet.workers}
    for path in marks.glob("*.pid"):
        parts = path.read_text().split()
        if len(parts) == 3 and parts[1] in ROLES and int(parts[0]) not in known:
            worker = server.fleet.workers.add()
            worker.record.worker_id = path.stem
            worker.record.pid = int(parts[0])
            worker.record.role = ROLES[parts[1]]
            worker.record.address = parts[2]
            worker.status.steps = 7
            worker.status.kv_groups.add(name="full", total_blocks=9, used_blocks=1)
    server.fleet.queue.redis_available = True
    server.fleet.router.router_id = "router-1"
    server.fleet.router.pid = os.getpid()
