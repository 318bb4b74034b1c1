"""Leader election by a Lease of Kubernetes.

The client library's own election is not used: it goes by the wall clock, its requests have no
deadline (a planner whose API hangs would lead for ever), it writes local time as if it were UTC,
an error of the connection ends it, and it does not give a lease up.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from kubernetes.aio.client import ApiClient, CoordinationV1Api, V1Lease, V1LeaseSpec, V1ObjectMeta

from services.planner.kubernetes_api import ScaleMissing, asked, micro_time, now
from services.planner.scaler import ScaleConflict, ScaleError, ScaleUnavailable

log = logging.getLogger(__name__)

LEASE_S = 15
"""Others take a lease over that was not renewed for so long."""
LEAD_S = 10.0
"""Its holder stops acting so long after it began to renew it the last time. What lies between
covers an answer that is under way, and clocks that run at different speeds."""
RENEW_S = 2.0
_REQUEST_S = 3.0
_CLOSE_S = 5.0


class LeaseElection:
    """A Leadership over all that use the same Lease."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        renew_s: float = RENEW_S,
    ) -> None:
        """`identity` is this planner's alone: whoever has the same one leads as well."""
        self._leases = CoordinationV1Api(api)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._renew_s = renew_s
        self._until = -1.0
        self._seen: tuple[str | None, float] = (None, 0.0)
        self._met = False
        """Whether there was a lease before."""
        self._missed_s: float | None = None
        """Since when there is none; None: there is one."""
        self._holder = ""
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def left_s(self) -> float:
        """For so long this planner may act; 0: another one does, or none can tell."""
        return max(0.0, self._until - self._clock())

    async def start(self) -> None:
        """Tries once, and goes on in the background. Never raises."""
        await self._try()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops, and gives the lease up. Never raises."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self.left_s <= 0:
            return
        self._until = -1.0
        try:
            async with asyncio.timeout(_CLOSE_S):
                lease = await self._read()
                if _spec(lease).holder_identity == self._identity:
                    await self._write(lease, "")
                    log.info("gave the lease %s up", self._name)
        except (ScaleError, TimeoutError) as error:
            log.warning("the lease %s runs out by itself: %s", self._name, error)

    async def turn(self) -> None:
        """Takes the lease if it is free, or renews it. Raises no ScaleError."""
        began = self._clock()
        try:
            held = await self._taken()
        except ScaleError as error:
            self._failed(error)
            return
        self._failing = False
        self._until = began + LEAD_S if held else -1.0

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            await self._try()

    async def _try(self) -> None:
        try:
            await self.turn()
        except Exception:
            log.exception("seeking the lease %s failed", self._name)

    async def _taken(self) -> bool:
        """Whether the lease is ours now."""
        try:
            lease = await self._read()
        except ScaleMissing:
            return await self._made()
        self._met, self._missed_s = True, None
        holder = _spec(lease).holder_identity or ""
        if holder not in ("", self._identity) and not self._expired(lease):
            self._is_held_by(holder)
            return False
        try:
            await self._write(lease, self._identity)
        except ScaleConflict:  # another one was faster
            return False
        self._is_held_by(self._identity)
        return True

    async def _made(self) -> bool:
        """Makes the lease where there is none. One that was deleted may have had a holder that
        acts on: only the holder makes it again at once, the others when he has stopped."""
        if self._missed_s is None:
            self._missed_s = self._clock()
        if self._met and self.left_s <= 0 and self._clock() - self._missed_s <= LEASE_S:
            return False
        try:
            await self._create()
        except ScaleConflict:
            return False
        self._met, self._missed_s = True, None
        self._is_held_by(self._identity)
        return True

    def _expired(self, lease: V1Lease) -> bool:
        """Whether its holder has not touched it for its whole duration, by our own clock: the
        times in it are of the holder's."""
        version = lease.metadata.resource_version if lease.metadata else None
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        return self._clock() - self._seen[1] > (_spec(lease).lease_duration_seconds or LEASE_S)

    def _is_held_by(self, holder: str) -> None:
        if holder != self._holder:
            self._holder = holder
            log.info("%s leads now", "this planner" if holder == self._identity else holder)

    def _failed(self, error: ScaleError) -> None:
        if not self._failing:
            log.warning("%s", error)
        self._failing = True

    async def _read(self) -> V1Lease:
        call = self._leases.read_namespaced_lease(self._name, self._namespace)
        return await asked(f"cannot read the lease {self._name}", call, _REQUEST_S)

    async def _create(self) -> None:
        moment = now()
        lease = V1Lease(
            metadata=V1ObjectMeta(name=self._name, namespace=self._namespace),
            spec=V1LeaseSpec(
                holder_identity=self._identity,
                lease_duration_seconds=LEASE_S,
                acquire_time=moment,
                renew_time=moment,
                lease_transitions=0,
            ),
        )
        call = self._leases.create_namespaced_lease(self._namespace, lease)
        self._check(await asked(f"cannot make the lease {self._name}", call, _REQUEST_S))

    async def _write(self, lease: V1Lease, holder: str) -> None:
        """Raises ScaleConflict where it is not what was read any more."""
        moment, spec = now(), _spec(lease)
        changed = spec.holder_identity != holder
        lease.spec = V1LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=LEASE_S if holder else 1,
            acquire_time=moment if changed else micro_time(spec.acquire_time or moment),
            renew_time=moment,
            lease_transitions=(spec.lease_transitions or 0) + (changed and bool(holder)),
        )
        call = self._leases.replace_namespaced_lease(self._name, self._namespace, lease)
        written = await asked(f"cannot write the lease {self._name}", call, _REQUEST_S)
        if holder:
            self._check(written)

    def _check(self, written: V1Lease) -> None:
        """Raises ScaleUnavailable unless it says that it is ours: a proxy may answer anything."""
        if _spec(written).holder_identity != self._identity:
            raise ScaleUnavailable(f"the lease {self._name} was written, and is not ours")


def _spec(lease: V1Lease) -> V1LeaseSpec:
    return lease.spec or V1LeaseSpec()
