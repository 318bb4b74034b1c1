"""A planner, a store, an orchestrator and a leadership that do as they are told, for tests of what
is between them."""

from collections import deque
from collections.abc import Mapping

from baton.errors import Unavailable
from baton.naming import WorkerId
from baton.policy.fleet import Role, Worker
from baton.policy.sizing import Traffic
from services.common.fleet.demand import DemandTotals
from services.common.fleet.store import FleetSnapshot
from services.planner.config import PlannerConfig
from services.planner.decision import Cause, Change, Decision, Sizing
from services.planner.history import History
from services.planner.observation import Observation, Pool
from services.planner.scaler import ScaleConflict, ScaleError


def change(
    current: int,
    wanted: int,
    role: Role = Role.DECODE,
    cause: Cause = Cause.QUEUE,
    victims: tuple[str, ...] = (),
) -> Change:
    ids = tuple(map(WorkerId, victims))
    why = f"{role.value} from {current} to {wanted}: 12 s of prompts wait"
    return Change(role, current, wanted, cause, why, ids)


class ToldPlanner:
    """Decides what it is told, and keeps what it was shown."""

    def __init__(self, **config: float) -> None:
        self.config = PlannerConfig(**config)
        self.history = History(self.config.bucket_s)
        self.present: Traffic | None = None
        self.foreseen: Traffic | None = None
        self.changes: tuple[Change, ...] = ()
        self.held_back: tuple[str, ...] = ()
        self.fails = False
        self.seen: list[Observation] = []

    def restore(self, history: History) -> None:
        self.history = history

    def decide(self, observation: Observation) -> Decision:
        if self.fails:
            raise ZeroDivisionError("a bug")
        self.seen.append(observation)
        sizings = (Sizing(Role.DECODE, 3, "9 requests/s need 3"),)
        return Decision(observation.at_s, self.changes, sizings, self.held_back)


class ToldScaler:
    """An orchestrator in memory. Fails with what is in `failing`, one call after the other."""

    def __init__(self) -> None:
        self.now = {Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(2, 2)}
        self.failing: deque[ScaleError] = deque()
        self.blind: deque[ScaleError] = deque()
        """As `failing`, where pools are asked for."""
        self.refusing: dict[tuple[Role, str], ScaleError] = {}
        """What is never done, by role and way ("up", "down")."""
        self.told: list[tuple[Change, bool]] = []

    async def pools(self) -> Mapping[Role, Pool]:
        if self.blind:
            raise self.blind.popleft()
        return dict(self.now)

    async def apply(self, change: Change) -> None:
        if self.failing:
            raise self.failing.popleft()
        if error := self.refusing.get((change.role, change.direction)):
            raise error
        if self.now[change.role].replicas != change.current:
            raise ScaleConflict("changed meanwhile")
        self.now[change.role] = Pool(change.wanted, self.now[change.role].ready)

    async def tell(self, change: Change, *, dry_run: bool) -> None:
        self.told.append((change, dry_run))


class ToldLeadership:
    """Leads for as long as it is told."""

    def __init__(self, left_s: float = 60.0) -> None:
        self.left_s = left_s

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class ToldStore:
    """The state of a fleet in memory. Not there while `away`."""

    def __init__(self) -> None:
        self.away = False
        self.unreadable = False
        """What was kept can't be read."""
        self.settled = True
        self.now = 1_000_000.0
        self.workers: tuple[Worker, ...] = ()
        self.totals = DemandTotals()
        self.values: dict[str, bytes] = {}
        self.writes = 0

    def _there(self) -> None:
        if self.away:
            raise Unavailable("Redis is away")

    async def snapshot(self) -> FleetSnapshot:
        self._there()
        return FleetSnapshot(self.workers, 4, 2.5, 0, 0, self.now, self.settled, {})

    async def demand(self) -> DemandTotals:
        self._there()
        return self.totals

    async def keep(self, name: str, value: bytes) -> None:
        self._there()
        self.writes += 1
        self.values[name] = value

    async def kept(self, name: str) -> bytes | None:
        self._there()
        if self.unreadable:
            raise Unavailable("no answer within 1 s")
        return self.values.get(name)
