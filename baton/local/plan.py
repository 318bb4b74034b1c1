"""From options to processes: names, ports, cores. Pure but for free ports."""

import os
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.local.child import ProcessSpec
from baton.local.commands import Commands, Slot, valkey_command
from baton.local.model import ServedModel
from baton.local.options import UpOptions
from baton.local.state import Kind

_PORTS = range(20_000, 32_000)
"""Below the ports that systems give to outgoing connections."""

FreePort = Callable[[], int]
"""A port that nothing listens on now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start at first, and where further workers go."""

    specs: tuple[ProcessSpec, ...]
    slots: Mapping[str, Slot]
    """Of all workers that there can be, by name; those of `specs` first."""
    commands: Commands
    free_port: FreePort

    @property
    def threads(self) -> int:
        """Compute threads of each worker."""
        return self.commands.threads

    @property
    def cores(self) -> dict[str, tuple[int, ...]]:
        """CPUs of each worker; empty: any."""
        return {name: slot.cores for name, slot in self.slots.items()}

    def names(self, kind: Kind) -> list[str]:
        """The workers of one role that there can be, in the order in which they are started."""
        return [name for name, slot in self.slots.items() if slot.kind is kind]

    def worker(self, name: str) -> ProcessSpec:
        """The worker of that name, at a port that is free now."""
        return self.commands.worker(self.slots[name], f"127.0.0.1:{self.free_port()}")


def make_plan(
    options: UpOptions,
    model: ServedModel,
    *,
    valkey: Path | None,
    cores: Sequence[int],
    free_port: FreePort,
) -> Plan:
    """What to start. `valkey` is the embedded server's binary, None where a URL was given."""
    specs: list[ProcessSpec] = []
    redis = options.redis or ""
    if valkey is not None:
        specs.append(valkey_command(valkey, options.run_dir, free_port()))
        redis = specs[0].address
    # A worker computes alike however many there are: cores are shared among all that can be.
    threads = options.threads or max(1, len(cores) // options.most_workers)
    commands = Commands(options, model, redis, threads)
    transfers = [f"127.0.0.1:{free_port()}" for _ in range(options.hosts)]
    for name, address in zip(transfer_names(options.hosts), transfers, strict=True):
        specs.append(commands.transfer(name, address))
    slots = _slots(options, share_cores(options.most_workers, threads, cores), transfers)
    first = slots[: options.workers]
    specs += [commands.worker(slot, f"127.0.0.1:{free_port()}") for slot in first]
    for i, name in enumerate(router_names(options.routers)):
        port = options.grpc_port if i == 0 else free_port()
        specs.append(commands.router(name, f"{options.host}:{port}"))
    if options.http_port is not None:
        routers = [spec.address for spec in specs if spec.kind is Kind.ROUTER]
        specs.append(commands.gateway(f"{options.host}:{options.http_port}", routers))
    if options.planner:
        specs.append(commands.planner(f"127.0.0.1:{free_port()}"))
    return Plan(tuple(specs), {slot.name: slot for slot in slots}, commands, free_port)


def _slots(
    options: UpOptions, shares: Sequence[tuple[int, ...]], transfers: Sequence[str]
) -> list[Slot]:
    names = [
        *((f"prefill-{i}", Kind.PREFILL) for i in range(options.prefill_workers)),
        *((f"decode-{i}", Kind.DECODE) for i in range(options.decode)),
        *(
            (f"prefill-{i}", Kind.PREFILL)
            for i in range(options.prefill_workers, options.most_prefill)
        ),
        *((f"decode-{i}", Kind.DECODE) for i in range(options.decode, options.most_decode)),
    ]
    # On hosts in turn, prefill workers first: one of each on two hosts is a handoff between hosts.
    return [
        Slot(name, kind, share, transfers[i % len(transfers)])
        for i, ((name, kind), share) in enumerate(zip(names, shares, strict=True))
    ]


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
