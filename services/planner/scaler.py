"""How a planner reaches whoever starts and stops workers.

ScaleError
+-- ScaleConflict      someone else changed it meanwhile; look again
+-- ScaleDenied        not allowed: nothing will help but an operator
+-- ScaleUnavailable   no answer; try again later
"""

from collections.abc import Mapping
from typing import Protocol

from baton.policy.fleet import Role
from services.planner.decision import Change
from services.planner.observation import Pool


class ScaleError(Exception):
    """The orchestrator did not do it; says why."""


class ScaleConflict(ScaleError):
    """The pool was changed between reading and writing."""


class ScaleDenied(ScaleError):
    """The planner has no permission."""


class ScaleUnavailable(ScaleError):
    """The orchestrator gives no answer, or is in no state to act."""


class Scaler(Protocol):
    """An orchestrator. Belongs to one event loop; every method answers or raises ScaleError
    within seconds."""

    async def pools(self) -> Mapping[Role, Pool]:
        """Both pools as they are now."""

    async def apply(self, change: Change) -> None:
        """Asks for `change.wanted` workers, unless there are not `change.current` any more
        (ScaleConflict). Workers to stop drain: of those asked for, `change.victims` go first."""

    async def tell(self, change: Change, *, dry_run: bool) -> None:
        """Leaves a record of a decision where operators of the orchestrator look. Never raises:
        a record that is lost is logged."""
