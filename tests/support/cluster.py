"""A whole Baton of real processes for a test, started as `baton up` starts it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from baton import errors
from baton.client import Client
from baton.local import preflight
from baton.local.child import launch_afresh, log_tail
from baton.local.guard import Guard
from baton.local.model import resolve_model
from baton.local.options import MEBIBYTE, UpOptions
from baton.local.plan import free_port, make_plan
from baton.local.supervisor import Supervisor
from baton.local.up import fleet_complete
from baton.v1 import inference_pb2, transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.common import rpc
from tests.support import forked
from tests.support.idle import held_in
from tests.support.proxy import Proxy, rewire

_BLOB_HEADER_BYTES = 64
LENIENT_S = 600.0
"""Slack of targets that no test means to miss: nobody need know what steps take."""


class Cluster:
    """Starts on entering, stops on leaving. For one test at a time, on pytest's main thread.

    Processes have names, `router`, `prefill-0`, `decode-1`, `transfer`, `valkey`; a role alone
    (`prefill`) means all of that role. With several hosts there are `transfer-0`, `transfer-1`,
    with several routers `router-0`, `router-1`. Those in `proxied` are reached through a proxy
    each, which `proxies` has by name.
    """

    def __init__(
        self,
        model: Path,
        *,
        run_dir: Path,
        prefill: int | None = None,
        decode: int = 1,
        aggregated: bool = False,
        hosts: int = 1,
        routers: int = 1,
        gateway: bool = False,
        guard: Guard | None = None,
        api_key: str | None = None,
        dtype: str = "float32",
        threads: int = 1,
        kv_bytes: int = 64 * MEBIBYTE,
        segment_bytes: int = 64 * MEBIBYTE,
        block_size: int = 16,
        grace: float = 10.0,
        proxied: Sequence[str] = (),
        service_flags: Sequence[str] = (),
        disaggregation: str = "always",
        ttft_slack_s: float = LENIENT_S,
        measured: bool = False,
        start_timeout: float = 60.0,
        fork: bool = True,
    ) -> None:
        """A tiny model's prompts are cheapest beside a decode batch: `disaggregation` is not left
        to the router, so that handoffs are tested. `ttft_slack_s`: a busy machine is slow, and
        requests are refused for it in tests of that alone. `api_key`: an operator's, where keys
        are used. `measured`: workers measure their device and compute some handoffs again, as
        they do in service. `fork`: services are forked once their imports are done."""
        router = [f"router:--ttft-slack-s={ttft_slack_s}"]
        if not measured:
            router += ["worker:--no-measure-peaks", "worker:--canary-ratio=0"]
            if ttft_slack_s >= LENIENT_S:
                router.append("worker:--warmup-seconds=0.1")
        if not aggregated:
            router.append(f"router:--disaggregation={disaggregation}")
        self.options = UpOptions(
            model=str(model),
            prefill=prefill,
            decode=decode,
            aggregated=aggregated,
            hosts=hosts,
            routers=routers,
            threads=threads,
            dtype=dtype,
            grpc_port=free_port(),
            http_port=free_port() if gateway else None,
            kv_bytes=kv_bytes,
            segment_bytes=segment_bytes,
            block_size=block_size,
            grace=grace,
            directory=run_dir,
            guard=guard or Guard(),
            service_flags=(*router, *service_flags),
        )
        self._api_key = api_key
        self._start_timeout = start_timeout
        self._proxied = proxied
        self._forked = fork
        self._supervisor: Supervisor | None = None
        self.clients: dict[str, Client] = {}
        """One for each router, by its name."""
        self.proxies: dict[str, Proxy] = {}

    @property
    def address(self) -> str:
        """Where the router, or the first one, serves."""
        return self.options.address

    @property
    def url(self) -> str:
        """Where the gateway serves."""
        assert self.options.http_address is not None, "no gateway"
        scheme = "http" if self.options.guard.tls is None else "https"
        return f"{scheme}://{self.options.http_address}"

    @property
    def addresses(self) -> list[str]:
        """Where the routers serve."""
        return [client.address for client in self.clients.values()]

    @property
    def client(self) -> Client:
        """The router's, or the first one's."""
        assert self.clients, "not entered"
        return next(iter(self.clients.values()))

    @property
    def supervisor(self) -> Supervisor:
        assert self._supervisor is not None, "not entered"
        return self._supervisor

    def __enter__(self) -> "Cluster":
        self.options.run_dir.make()
        plan = make_plan(
            self.options,
            resolve_model(self.options.model, None, print),
            valkey=preflight.find_valkey(),
            cores=(),  # test machines have few: nothing is pinned
            free_port=free_port,
        )
        specs, self.proxies = rewire(plan.specs, self._proxied)
        if self._forked:
            forked.prepare(spec.command for spec in specs)
        self._supervisor = Supervisor(specs, forked.launch if self._forked else launch_afresh)
        self.clients = {
            spec.name: self.client_of(spec.address) for spec in specs if spec.kind == "router"
        }
        try:
            for proxy in self.proxies.values():
                proxy.start()
            self.supervisor.start()
            self.wait_ready(self._start_timeout)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients.values():
            client.close()
        if self._supervisor is not None:
            self._wake()
            self._supervisor.stop()
        for proxy in self.proxies.values():
            proxy.close()

    def _wake(self) -> None:
        for name in self.supervisor.started():
            self.supervisor.child(name).signal(signal.SIGCONT)

    def client_of(self, address: str) -> Client:
        """A client that may see everything."""
        return Client(address, api_key=self._api_key, tls=self.options.guard.tls)

    # Processes

    def names(self, role: str) -> list[str]:
        """The processes of a role, or the one of that name."""
        found = [
            name for name, spec in self.supervisor.specs.items() if role in (name, str(spec.kind))
        ]
        assert found, f"no process is called {role}"
        return found

    def pids(self, role: str) -> list[int]:
        return [self.supervisor.child(name).pid for name in self.names(role)]

    def log(self, name: str) -> str:
        """All that a process has logged."""
        return self.options.run_dir.log(name).read_text()

    def kill(self, role: str, number: int = signal.SIGKILL, timeout: float = 20.0) -> None:
        """Sends a signal that ends processes, and waits for their end."""
        children = [self.supervisor.child(name) for name in self.names(role)]
        for child in children:
            child.signal(number)
        for child in children:
            assert child.wait(timeout), f"{child.spec.name} did not end: {log_tail(child.spec.log)}"

    def start(self, role: str) -> None:
        """Starts ended processes again, at the same addresses; does not wait for them."""
        for name in self.names(role):
            self.supervisor.start_one(name)

    def restart(self, role: str, number: int = signal.SIGKILL) -> None:
        """Ends processes, starts them again and waits until the cluster is complete."""
        self.kill(role, number)
        self.start(role)
        self.wait_ready(self._start_timeout)

    @contextlib.contextmanager
    def stopped(self, role: str) -> Iterator[None]:
        """Holds processes still (SIGSTOP): their connections stay open, nothing answers."""
        children = [self.supervisor.child(name) for name in self.names(role)]
        for child in children:
            child.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for child in children:
                child.signal(signal.SIGCONT)

    def spawn_client(self, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        """`baton generate` in a process of its own; the caller ends it."""
        command = [sys.executable, "-P", "-m", "baton.cli", "generate", "--address", self.address]
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    # What they tell

    def fleet(self, *, check_integrity: bool = False) -> inference_pb2.GetFleetResponse:
        return self.client.fleet(check_integrity=check_integrity, timeout=10.0)

    def fleets(self, *, check_integrity: bool = False) -> list[inference_pb2.GetFleetResponse]:
        """What each router answers."""
        return [
            client.fleet(check_integrity=check_integrity, timeout=10.0)
            for client in self.clients.values()
        ]

    def worker_status(self, role: str) -> worker_pb2.GetWorkerStatusResponse:
        """The own answer of the one worker of a role, or of that name; asked from it itself."""
        (name,) = self.names(role)
        with grpc.insecure_channel(self.supervisor.specs[name].address) as channel:
            return worker_pb2_grpc.WorkerServiceStub(channel).GetWorkerStatus(
                worker_pb2.GetWorkerStatusRequest(), timeout=5.0
            )

    def transfer_address(self, host: int = 0) -> str:
        """Where the transfer service of a host serves."""
        return self.supervisor.specs[self.names("transfer")[host]].address

    def transfer_status(self, host: int = 0) -> transfer_pb2.GetTransferStatusResponse:
        """The own answer of a host's transfer service."""
        with grpc.insecure_channel(self.transfer_address(host)) as channel:
            return transfer_pb2_grpc.TransferServiceStub(channel).GetTransferStatus(
                transfer_pb2.GetTransferStatusRequest(), timeout=5.0
            )

    def resident_bytes(self) -> dict[str, int]:
        """Memory of each process."""
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            for name in self.supervisor.specs
            for pid in self.pids(name)
        }

    # Waiting and checking

    def wait_ready(self, timeout: float) -> None:
        """Waits until every router knows every process that runs now, and it answers."""
        deadline = time.monotonic() + timeout
        while not (self.supervisor.ready() and self.complete()):
            self.supervisor.check()
            assert time.monotonic() < deadline, f"not ready after {timeout} s: {self._unready()}"
            time.sleep(0.05)

    def complete(self) -> bool:
        """Whether every router answers and knows every worker that runs now."""
        pids = {pid for role in ("prefill", "decode") for pid in self._pids_of_kind(role)}
        return all(fleet_complete(client, pids) for client in self.clients.values())

    def _pids_of_kind(self, kind: str) -> list[int]:
        specs = self.supervisor.specs.items()
        return [self.supervisor.child(name).pid for name, spec in specs if spec.kind == kind]

    def _unready(self) -> str:
        return "; ".join(
            f"{state.name}: {log_tail(Path(state.log), 3)}"
            for state in self.supervisor.states()
            if not state.ready
        )

    def wait_idle(self, timeout: float) -> None:
        """Waits until nothing is held, claimed, leased or waiting anywhere."""
        deadline = time.monotonic() + timeout
        while True:
            started = time.monotonic()
            try:
                held = [one for fleet in self.fleets() for one in held_in(fleet)]
            except errors.BatonError as error:
                held = [str(error)]
            if not held:
                return
            assert started < deadline, f"not idle after {timeout} s: {held}"
            time.sleep(0.02)

    def assert_clean(self, timeout: float = 5.0) -> None:
        """All processes live, nothing is held anywhere, and every structure is sound."""
        self.supervisor.check()
        self.wait_ready(self._start_timeout)  # who was held still may have to be found again
        self.wait_idle(timeout)
        for fleet in self.fleets(check_integrity=True):
            broken = [f"{one.record.worker_id}: {one.error}" for one in fleet.workers if one.error]
            broken += [f"transfer: {one.error}" for one in fleet.transfers if one.error]
            assert not broken, broken
            assert len(fleet.workers) == self.options.workers
            assert len(fleet.transfers) == self.options.hosts
            assert not held_in(fleet)

    async def corrupt_blobs(self, names: Sequence[bytes], host: int = 0) -> int:
        """Flips a byte in the payload of each of these blobs, behind everyone's back."""
        places = []
        lease_id = "corrupt-blobs"
        async with rpc.channel(self.transfer_address(host)) as channel:
            stub = transfer_pb2_grpc.TransferServiceStub(channel)
            acquire = transfer_pb2.AcquireRequest(names=names, lease_id=lease_id)
            acquire.lease_ttl.FromSeconds(5)
            async for answer in stub.Acquire(acquire, timeout=5.0):
                places += [(blob.segment_path, blob.place) for blob in answer.blobs]
            for path, place in places:
                _flip_byte(Path(path), place.offset_bytes + _BLOB_HEADER_BYTES)
            await stub.ReleaseLease(
                transfer_pb2.ReleaseLeaseRequest(lease_id=lease_id), timeout=5.0
            )
        return len(places)


def _flip_byte(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))
