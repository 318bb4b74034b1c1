"""Which of several planners acts."""

import math
from typing import Protocol


class Leadership(Protocol):
    """Belongs to one event loop."""

    @property
    def left_s(self) -> float:
        """For so long this planner may act; 0: another one does."""

    async def start(self) -> None:
        """Begins to seek it, in the background. Never raises."""

    async def close(self) -> None:
        """Gives it up at once, so that another can take it. Never raises."""


class Alone:
    """There is no other planner."""

    @property
    def left_s(self) -> float:
        """For ever."""
        return math.inf

    async def start(self) -> None:
        """Nothing to seek."""

    async def close(self) -> None:
        """Nothing to give up."""
