"""Carries decisions out: applies them, and says what was done and why."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from baton.policy.fleet import Role
from services.planner.config import PlannerConfig
from services.planner.decision import Change, Decision
from services.planner.leadership import Leadership
from services.planner.observation import Observation
from services.planner.patience import Patience
from services.planner.scaler import ScaleError, Scaler, ScaleUnavailable
from services.planner.standing import Standing

log = logging.getLogger(__name__)

_REPEAT_S = 600.0
"""A dry run says again after so long what it would still do."""


class Actor:
    """Acts for one planner. Belongs to one event loop."""

    def __init__(
        self,
        scaler: Scaler,
        leadership: Leadership,
        standing: Standing,
        config: PlannerConfig,
        clock: Callable[[], float],
        *,
        dry_run: bool,
    ) -> None:
        self._scaler = scaler
        self._leadership = leadership
        self._standing = standing
        self._config = config
        self._patience = {(role, way): Patience(clock) for role in Role for way in ("up", "down")}
        """Who may not mark pods may still add some, and one Deployment is not the other."""
        self._dry_run = dry_run
        self._told: dict[tuple[object, ...], float] = {}

    async def act(self, decision: Decision, seen: Observation) -> bool:
        """Does all that was decided, unless another planner leads. Returns whether nothing
        failed. Never raises ScaleError."""
        sound = True
        asked = {role: pool.replicas for role, pool in seen.pools.items()}
        for change in decision.changes:
            if self._leadership.left_s <= 0:
                return sound
            if self._dry_run:
                await self._explain(change, decision.at_s)
            elif problem := _unseen(change, seen):
                log.info("%s stays at %d: %s", change.role.value, change.current, problem)
            elif not self._fits(change, asked):
                log.info("%s stays at %d: no GPUs are free yet", change.role.value, change.current)
            elif await self._apply(change):
                asked[change.role] = change.wanted
            else:
                sound = False
        return sound

    async def _explain(self, change: Change, at_s: float) -> None:
        key = (change.role, change.current, change.wanted, change.cause)
        if at_s - self._told.get(key, -math.inf) < _REPEAT_S:
            return
        self._told = {one: told for one, told in self._told.items() if at_s - told < _REPEAT_S}
        self._told[key] = at_s
        log.info("would scale, %s", _sentence(change))
        self._standing.did(change)
        await self._scaler.tell(change, dry_run=True)

    def _fits(self, change: Change, asked: Mapping[Role, int]) -> bool:
        """Whether a pool can grow now: the other one, that was to shrink for it, may not have."""
        counts = {**asked, change.role: change.wanted}
        return change.direction == "down" or self._config.fits(counts)

    async def _apply(self, change: Change) -> bool:
        patience = self._patience[change.role, change.direction]
        if not patience.over:
            return False
        log.info("scales, %s", _sentence(change))
        left_s = self._leadership.left_s
        try:
            async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                await self._scaler.apply(change)
        except TimeoutError:
            return self._failed(patience, ScaleUnavailable("another planner may lead by now"))
        except ScaleError as error:
            return self._failed(patience, error)
        patience.worked()
        self._standing.did(change)
        await self._scaler.tell(change, dry_run=False)
        return True

    def _failed(self, patience: Patience, error: ScaleError) -> bool:
        self._standing.failed(error)
        patience.failed(error)
        return False


def _unseen(change: Change, seen: Observation) -> str:
    """Why a pool must not shrink on what was seen: where workers that serve are not registered,
    what they hold is not known; and those that are not ready go before any victim."""
    if change.direction == "up":
        return ""
    known = [one for one in seen.workers if one.role is change.role and not one.draining]
    registered, ready = len(known), seen.pools[change.role].ready
    if registered < ready:
        return f"{ready} workers serve, {registered} are registered"
    if registered > ready and any(one.sequences for one in known):
        return f"{ready} of {registered} workers are ready, and one that is not may be busy"
    return ""


def _sentence(change: Change) -> str:
    victims = f"; first of all {', '.join(change.victims)}" if change.victims else ""
    return f"{change.cause.value}: {change.why}{victims}"
