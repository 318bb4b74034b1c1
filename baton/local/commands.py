"""Command lines of the services of one Baton."""

import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton.local.child import ProcessSpec
from baton.local.model import ServedModel
from baton.local.options import UpOptions
from baton.local.paths import RunDir
from baton.local.state import Kind

_MAX_SOCKET_PATH = 100  # bytes; systems allow little more
_EXTRA_GRACE = 5.0
_COLD_START_S = 10.0
"""What a planner expects of processes on one machine until it has seen one start."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a worker of one name runs, whenever it does."""

    name: str
    kind: Kind
    cores: tuple[int, ...]
    """CPUs of its own; empty: any."""
    transfer: str
    """Its host's transfer service."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines of services that share a model and a Redis."""

    options: UpOptions
    model: ServedModel
    redis: str
    threads: int

    def transfer(self, name: str, address: str) -> ProcessSpec:
        flags: dict[str, object] = {}
        if self.options.hosts > 1:
            flags["--peer-segment-bytes"] = self.options.segment_bytes
        spec = self._spec(name, Kind.TRANSFER, address, flags)
        return replace(spec, death_signal=signal.SIGTERM)  # to remove its shared memory

    def worker(self, slot: Slot, address: str) -> ProcessSpec:
        flags = {
            **self._fleet(),
            "--model": self.model.path,
            "--served-name": self.model.name,
            "--worker-id": slot.name,
            "--dtype": self.options.dtype,
            "--threads": self.threads,
            "--cores": ",".join(map(str, slot.cores)),
            "--kv-bytes": self.options.kv_bytes,
            "--segment-bytes": self.options.segment_bytes,
            "--block-size": self.options.block_size,
            "--transfer": slot.transfer,
            "--drain-seconds": self.options.grace,
            "--progress-file": self.options.run_dir.progress_file(slot.name),
        }
        return self._spec(slot.name, slot.kind, address, flags)

    def router(self, name: str, address: str) -> ProcessSpec:
        template = self.options.chat_template
        flags = {
            **self._fleet(),
            "--model": self.model.path,
            "--model-name": self.model.name,
            "--chat-template": template.absolute() if template is not None else "",
            "--ttft-interactive-s": self.options.ttft_target,
            "--grace-s": self.options.grace,
        }
        switches = ["--disaggregation=never"] if self.options.aggregated else []
        return self._spec(name, Kind.ROUTER, address, flags, switches)

    def gateway(self, address: str, routers: Sequence[str]) -> ProcessSpec:
        flags: dict[str, object] = {
            "--router": ",".join(map(self.options.reachable, routers)),
            "--grace-s": self.options.grace,
        }
        return self._spec("gateway", Kind.GATEWAY, address, flags)

    def planner(self, address: str) -> ProcessSpec:
        flags = {
            **self._fleet(),
            "--scaler": "local",
            "--replicas-file": self.options.run_dir.replicas,
            "--state-file": self.options.run_dir.state,
            "--max-prefill": self.options.most_prefill,
            "--max-decode": self.options.most_decode,
            "--ttft-target-s": self.options.ttft_target,
            "--cold-start-s": _COLD_START_S,
        }
        return self._spec("planner", Kind.PLANNER, address, flags)

    def _fleet(self) -> dict[str, object]:
        machine = f"{socket.gethostname()}-{self.options.grpc_port}"
        return {"--redis": self.redis, "--fleet": self.options.fleet or machine}

    def _spec(
        self,
        name: str,
        kind: Kind,
        address: str,
        flags: dict[str, object],
        switches: Sequence[str] = (),
    ) -> ProcessSpec:
        run_dir = self.options.run_dir
        flags = {
            "--address": address,
            "--ready-file": run_dir.ready_file(name),
            "--process-name": name,
            "--log-format": "human",  # nobody but people reads the files
            **flags,
        }
        if kind is not Kind.GATEWAY:  # which has them at its own address
            flags["--metrics-address"] = "127.0.0.1:0"
        progress = flags.get("--progress-file")
        return ProcessSpec(
            name=name,
            kind=kind,
            command=(
                *(sys.executable, "-P", "-m", f"services.{kind}"),
                *(f"{flag}={value}" for flag, value in flags.items() if value != ""),
                *switches,
                *self.options.guard.flags(kind),
                *_further(self.options.service_flags, kind),
            ),
            address=address,
            grace=self.options.grace + _EXTRA_GRACE,
            log=run_dir.log(name),
            ready_file=run_dir.ready_file(name),
            progress_file=progress if isinstance(progress, Path) else None,
        )


def valkey_command(binary: Path, run_dir: RunDir, port: int) -> ProcessSpec:
    """The embedded server; at `port` where the directory's path is too long for a socket."""
    path = run_dir.path / "valkey.sock"
    settings = {"save": "", "appendonly": "no", "daemonize": "no", "dir": str(run_dir.path)}
    if len(str(path)) <= _MAX_SOCKET_PATH:
        address = f"unix://{path}"
        settings |= {"port": "0", "unixsocket": str(path), "unixsocketperm": "700"}
    else:
        address = f"redis://127.0.0.1:{port}"
        settings |= {"port": str(port), "bind": "127.0.0.1"}
    return ProcessSpec(
        name="valkey",
        kind=Kind.VALKEY,
        command=(str(binary), *(part for k, v in settings.items() for part in (f"--{k}", v))),
        address=address,
        grace=_EXTRA_GRACE,
        log=run_dir.log("valkey"),
        ready_file=None,
    )


def _further(service_flags: Sequence[str], kind: Kind) -> list[str]:
    rooms = {str(kind), *(["worker"] if kind in (Kind.PREFILL, Kind.DECODE) else [])}
    named = (flag.partition(":") for flag in service_flags)
    return [flag for room, _, flag in named if room in rooms]
