"""NIXL (UCX: RDMA, TCP, process_vm_readv): the one module that imports it.

All calls of the agent are made on one thread: some take long, and none is said to be safe for
more. Bytes never go straight into a segment: a read that is given up can still write when its
peer comes back, and NIXL cannot take that back. So reads land in slots of a buffer of our own,
and a slot is used again only when its transfer ended, however long that takes.

Nothing is deregistered or removed while the process lives but segments that are gone.
"""

import asyncio
import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from baton.naming import new_id
from services.common.transfer.copying import settled
from services.common.transfer.place import Bytes

log = logging.getLogger(__name__)

T = TypeVar("T")

SLOTS = 4
SLOT_BYTES = 4 << 20
_MODULES = ("nixl_cu12", "nixl_cu13", "nixl")
_RUNNING, _DONE = "PROC", "DONE"
_POLL_S = 0.004
"""How long the thread looks at one transfer before another call has its turn."""
_PAUSE_S = 0.0001
_MEMORY = "DRAM"


class NixlFailed(Exception):
    """NIXL did not do what it should; the message is its own."""


def module_name() -> str | None:
    """The module that has NIXL here; None where it is not installed."""
    for name in _MODULES:
        if importlib.util.find_spec(name) is not None:
            return name
    return None


@dataclass(frozen=True, slots=True)
class Remote:
    """Bytes in another process."""

    address: int
    size: int


@dataclass(slots=True)
class _Slot:
    index: int
    pending: Any = None
    """The handle of a transfer that was given up and has not ended."""


class NixlAgent:
    """This process's agent. Its methods belong to one event loop."""

    def __init__(self) -> None:
        self.name = new_id("nixl")
        self._thread = ThreadPoolExecutor(1, "baton-nixl")
        self._starting: asyncio.Task[None] | None = None
        self._agent: Any = None
        self._buffer: Bytes = np.zeros(0, np.uint8)
        self._free = [_Slot(index) for index in range(SLOTS)]
        self._pending: list[_Slot] = []

    @property
    def used(self) -> bool:
        """Whether NIXL was ever started in this process."""
        return self._starting is not None

    async def start(self) -> None:
        """Loads NIXL, once; takes a second. Raises NixlFailed."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._call(self._load))
        await asyncio.shield(self._starting)

    def _load(self) -> None:
        api = importlib.import_module(f"{module_name()}._api")
        # NIXL's own progress thread never sleeps: it takes a whole core from here on, idle or not.
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = api.nixl_agent(self.name, config)
        self._buffer = np.zeros(SLOTS * SLOT_BYTES, np.uint8)
        self._register(self._buffer)

    def _register(self, memory: Bytes) -> Any:
        region = (memory.ctypes.data, memory.nbytes, 0, "")
        return self._agent.register_memory([region], _MEMORY)

    # What others read

    async def register(self, memory: Bytes) -> Any:
        """Lets others read `memory`, until it is deregistered by what this returns."""
        return await self._call(lambda: self._register(memory))

    async def deregister(self, registration: Any) -> None:
        """Ends that."""
        await self._call(lambda: self._agent.deregister_memory(registration))

    async def metadata(self) -> bytes:
        """What another agent needs to read what is registered by now."""
        return await self._call(lambda: bytes(self._agent.get_agent_metadata()))

    async def serve(self, is_wanted: Callable[[], bool]) -> None:
        """Moves others' reads on while they are wanted; they stand still otherwise.

        Raises NixlFailed.
        """
        while is_wanted():
            await self._call(self._progress)

    def _progress(self) -> None:
        until = time.monotonic() + _POLL_S
        while time.monotonic() < until:
            self._agent.get_new_notifs()
            time.sleep(_PAUSE_S)

    # Reading

    async def connect(self, metadata: bytes) -> None:
        """Makes another agent's memory known, or more of it."""
        await self._call(lambda: self._agent.add_remote_agent(metadata))

    async def take_slot(self) -> "_Slot":
        """A slot of the buffer, alone; waits until there is one. To be given back by `read`'s
        caller with `give_slot`."""
        while not self._free:
            await self._reclaim()
            if not self._free:
                await asyncio.sleep(0.005)
        return self._free.pop()

    def give_slot(self, slot: "_Slot") -> None:
        """Gives a slot back; one with a transfer under way waits for its end."""
        (self._free if slot.pending is None else self._pending).append(slot)

    async def read(self, remote: str, places: Sequence[Remote], slot: "_Slot") -> list[memoryview]:
        """Reads places, SLOT_BYTES at most together, into the slot: a view of each.

        Raises NixlFailed. When cancelled, the slot knows the transfer that still runs.
        """
        begin = slot.index * SLOT_BYTES
        views: list[memoryview] = []
        local: list[tuple[int, int, int]] = []
        for place in places:
            view = self._buffer[begin : begin + place.size]
            local.append((view.ctypes.data, place.size, 0))
            views.append(view.data)
            begin += place.size
        wanted = [(place.address, place.size, 0) for place in places]
        state = await self._call(lambda: self._post(remote, local, wanted, slot))
        while state == _RUNNING:
            state = await self._call(lambda: self._poll(slot))
        if state != _DONE:
            raise NixlFailed(f"a transfer ended as {state}")
        return views

    def _post(
        self,
        remote: str,
        local: Sequence[tuple[int, int, int]],
        wanted: Sequence[tuple[int, int, int]],
        slot: "_Slot",
    ) -> str:
        agent = self._agent
        handle = agent.initialize_xfer(
            "READ",
            agent.get_xfer_descs(local, _MEMORY),
            agent.get_xfer_descs(wanted, _MEMORY),
            remote,
        )
        slot.pending = handle  # before it runs: whoever is cancelled finds it there
        try:
            state = str(agent.transfer(handle))
        except Exception:
            slot.pending = None
            raise
        return self._poll(slot) if state == _RUNNING else self._end(slot, state)

    def _poll(self, slot: "_Slot") -> str:
        until = time.monotonic() + _POLL_S
        state = _RUNNING
        while state == _RUNNING and time.monotonic() < until:
            try:
                state = str(self._agent.check_xfer_state(slot.pending))
            except Exception as error:  # noqa: BLE001 - NIXL has a type for each failure
                state = f"{type(error).__name__}: {error}"
            if state == _RUNNING:
                time.sleep(_PAUSE_S)
        return state if state == _RUNNING else self._end(slot, state)

    def _end(self, slot: "_Slot", state: str) -> str:
        handle, slot.pending = slot.pending, None
        self._agent.release_xfer_handle(handle)
        return state

    async def _reclaim(self) -> None:
        for slot in list(self._pending):
            await self._call(lambda slot=slot: self._poll(slot))  # type: ignore[misc]
            if slot.pending is None:
                self._pending.remove(slot)
                self._free.append(slot)

    async def _call(self, work: Callable[[], T]) -> T:
        """Runs `work` on the agent's thread; returns, also when cancelled, when it ended."""
        running = self._thread.submit(work)
        waiter = asyncio.wrap_future(running)
        try:
            await asyncio.wait([waiter])
        finally:
            if not running.cancel():
                await settled(waiter)
                waiter.exception()
        try:
            return running.result()
        except Exception as error:
            raise NixlFailed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Takes no more calls; whoever leaves the process must do it by `os._exit`."""
        self._thread.shutdown(wait=False, cancel_futures=True)
