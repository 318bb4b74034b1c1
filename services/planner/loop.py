"""The planner's loop: looks, decides, acts. One round every few seconds.

Whatever is not seen, the pools stay as they are. All planners look and decide, so that one that
begins to lead knows the load; the one that leads acts.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from baton.errors import BatonError
from services.common.fleet.store import FleetStore
from services.planner.actor import Actor
from services.planner.decision import Decision
from services.planner.leadership import Leadership
from services.planner.memory import Memory
from services.planner.observation import Observation
from services.planner.patience import Patience
from services.planner.planner import Planner
from services.planner.scaler import ScaleError, Scaler
from services.planner.standing import Standing

log = logging.getLogger(__name__)

_STOP_S = 3.0
"""For the round that runs when the planner is to stop."""
_EXPLAIN_S = 60.0
_SILENCE_S = 120.0
"""Every wait of a round has a deadline; all of them together are far shorter than this."""


class PlannerLoop:
    """Rounds until it is stopped. Belongs to one event loop."""

    def __init__(
        self,
        planner: Planner,
        store: FleetStore,
        scaler: Scaler,
        leadership: Leadership,
        standing: Standing,
        *,
        dry_run: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leadership` is started and closed by the caller."""
        self._planner = planner
        self._store = store
        self._scaler = scaler
        self._leadership = leadership
        self._standing = standing
        self._memory = Memory(store, planner)
        self._looking = Patience(clock)
        self._actor = Actor(scaler, leadership, standing, planner.config, clock, dry_run=dry_run)
        self._redis_away = False
        self._unsettled = False
        self._explained_at = float("-inf")

    async def run(self, stop: asyncio.Event) -> None:
        """Goes on until `stop`; then lets the round end that runs, within seconds."""
        rounds = asyncio.create_task(self._rounds(stop))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({rounds, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({rounds}, timeout=_STOP_S)
        finally:
            for task in (rounds, stopped):
                task.cancel()
            await asyncio.wait({rounds, stopped})
        if self._leadership.left_s > 0:
            await self._memory.keep()

    def trouble(self) -> str:
        """What keeps the planner from its rounds, for people; empty: nothing."""
        silent_s = self._standing.silent_s - self._planner.config.react_s
        return f"no round has ended for {silent_s:.0f} s" if silent_s > _SILENCE_S else ""

    async def round(self) -> None:
        """Looks, decides and acts once. Never raises."""
        sound = False
        try:
            sound = await self._round()
            self._redis_away = False
        except ScaleError as error:
            self._standing.failed(error)
            self._looking.failed(error)
        except BatonError as error:
            self._standing.failed(error)
            if not self._redis_away:
                log.warning("the pools stay as they are: %s", error)
            self._redis_away = True
        except Exception as error:
            self._standing.failed(error)
            log.exception("a round failed")
        self._standing.round_ended(sound=sound)

    async def _rounds(self, stop: asyncio.Event) -> None:
        period_s = self._planner.config.react_s
        while not stop.is_set():
            began = time.monotonic()
            await self.round()
            left_s = max(0.1, period_s - (time.monotonic() - began))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await stop.wait()

    async def _round(self) -> bool:
        """Returns whether all was seen and done."""
        seen = await self._look()
        if seen is None:
            return False
        await self._memory.recall()
        began = time.perf_counter()
        decision = await asyncio.to_thread(self._planner.decide, seen)
        self._standing.decide_s.observe(time.perf_counter() - began)
        self._standing.decision = decision
        if self._leadership.left_s <= 0:
            return True
        self._explain(decision)
        sound = await self._actor.act(decision, seen)
        await self._memory.keep()
        return sound

    async def _look(self) -> Observation | None:
        """None: not now. Raises BatonError where Redis is away, ScaleError where the
        orchestrator is."""
        snapshot = await self._store.snapshot()
        totals = await self._store.demand()
        if not snapshot.settled:
            if not self._unsettled:
                log.info("the pools stay as they are until all workers had the time to register")
            self._unsettled = True
            return None
        self._unsettled = False
        if not self._looking.over:
            return None
        pools = self._standing.pools = await self._scaler.pools()
        self._looking.worked()
        return Observation(
            at_s=snapshot.now,
            workers=snapshot.workers,
            waiting=snapshot.waiting,
            queued_s=snapshot.queued_s,
            totals=totals,
            pools=pools,
        )

    def _explain(self, decision: Decision) -> None:
        """What is behind it, now and then."""
        if decision.at_s - self._explained_at < _EXPLAIN_S:
            return
        self._explained_at = decision.at_s
        for sizing in decision.sizings:
            log.info("%s needs %d: %s", sizing.role.value, sizing.needed, sizing.why)
        for held_back in decision.held_back:
            log.info("held back: %s", held_back)
