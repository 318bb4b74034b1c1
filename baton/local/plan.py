"""From options to processes: names, command lines, ports, cores. Pure but for free ports."""

import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton.local.child import ProcessSpec
from baton.local.model import ServedModel
from baton.local.options import UpOptions
from baton.local.paths import RunDir
from baton.local.state import Kind

_PORTS = range(20_000, 32_000)
"""Below the ports that systems give to outgoing connections."""
_MAX_SOCKET_PATH = 100  # bytes; systems allow little more
_EXTRA_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    specs: tuple[ProcessSpec, ...]
    cores: dict[str, tuple[int, ...]]
    """CPUs of each worker; empty: any."""
    threads: int
    """Compute threads of each worker."""


def make_plan(
    options: UpOptions,
    model: ServedModel,
    *,
    valkey: Path | None,
    cores: Sequence[int],
    free_port: Callable[[], int],
) -> Plan:
    """What to start. `valkey` is the embedded server's binary, None where a URL was given."""
    run_dir = options.run_dir
    threads = options.threads or max(1, len(cores) // options.workers)
    names = [
        *((f"prefill-{i}", Kind.PREFILL) for i in range(options.prefill_workers)),
        *((f"decode-{i}", Kind.DECODE) for i in range(options.decode)),
    ]
    shares = share_cores(len(names), threads, cores)
    specs: list[ProcessSpec] = []
    redis = options.redis or ""
    if valkey is not None:
        specs.append(_valkey(valkey, run_dir, free_port))
        redis = specs[0].address
    services = _Services(options, model, redis, threads)
    transfers = [f"127.0.0.1:{free_port()}" for _ in range(options.hosts)]
    for name, address in zip(transfer_names(options.hosts), transfers, strict=True):
        specs.append(services.transfer(name, address))
    for i, ((name, kind), share) in enumerate(zip(names, shares, strict=True)):
        address = f"127.0.0.1:{free_port()}"
        # In turn, prefill workers first: one of each on two hosts is a handoff between hosts.
        specs.append(services.worker(name, kind, address, share, transfers[i % options.hosts]))
    for i, name in enumerate(router_names(options.routers)):
        port = options.grpc_port if i == 0 else free_port()
        specs.append(services.router(name, f"{options.host}:{port}"))
    if options.http_port is not None:
        routers = [spec.address for spec in specs if spec.kind is Kind.ROUTER]
        specs.append(services.gateway(f"{options.host}:{options.http_port}", routers))
    pinned = {name: share for (name, _), share in zip(names, shares, strict=True)}
    return Plan(tuple(specs), pinned, threads)


def transfer_names(hosts: int) -> list[str]:
    """What the transfer services of so many hosts are called."""
    return ["transfer"] if hosts == 1 else [f"transfer-{i}" for i in range(hosts)]


def router_names(routers: int) -> list[str]:
    """What so many routers are called."""
    return ["router"] if routers == 1 else [f"router-{i}" for i in range(routers)]


def share_cores(workers: int, threads: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Cores of its own for each worker where there are enough for all; else none for any."""
    if workers * threads > len(cores):
        return [()] * workers
    return [tuple(cores[i * threads : (i + 1) * threads]) for i in range(workers)]


def available_cores() -> list[int]:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass(frozen=True, slots=True)
class _Services:
    """Command lines of services that share a model and a Redis."""

    options: UpOptions
    model: ServedModel
    redis: str
    threads: int

    def transfer(self, name: str, address: str) -> ProcessSpec:
        alone = self.options.hosts == 1
        flags = {} if alone else {"--peer-segment-bytes": self.options.segment_bytes}
        spec = self._spec(name, Kind.TRANSFER, address, dict[str, object](flags))
        return replace(spec, death_signal=signal.SIGTERM)  # to remove its shared memory

    def worker(
        self, name: str, kind: Kind, address: str, cores: tuple[int, ...], transfer: str
    ) -> ProcessSpec:
        flags = {
            **self._fleet(),
            "--model": self.model.path,
            "--served-name": self.model.name,
            "--worker-id": name,
            "--dtype": self.options.dtype,
            "--threads": self.threads,
            "--cores": ",".join(map(str, cores)),
            "--kv-bytes": self.options.kv_bytes,
            "--segment-bytes": self.options.segment_bytes,
            "--block-size": self.options.block_size,
            "--transfer": transfer,
            "--drain-seconds": self.options.grace,
            "--progress-file": self.options.run_dir.progress_file(name),
        }
        return self._spec(name, kind, address, flags)

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


def _further(service_flags: Sequence[str], kind: Kind) -> list[str]:
    rooms = {str(kind), *(["worker"] if kind in (Kind.PREFILL, Kind.DECODE) else [])}
    named = (flag.partition(":") for flag in service_flags)
    return [flag for room, _, flag in named if room in rooms]


def _valkey(binary: Path, run_dir: RunDir, free_port: Callable[[], int]) -> ProcessSpec:
    path = run_dir.path / "valkey.sock"
    settings = {"save": "", "appendonly": "no", "daemonize": "no", "dir": str(run_dir.path)}
    if len(str(path)) <= _MAX_SOCKET_PATH:
        address = f"unix://{path}"
        settings |= {"port": "0", "unixsocket": str(path), "unixsocketperm": "700"}
    else:
        port = free_port()
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
