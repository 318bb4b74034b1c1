"""What happens next, in a simulation of discrete events. Time is in seconds from its start."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Events:
    """Actions by their time; those of one time run in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        """Actions that ran."""
        self._planned: list[tuple[float, int, Action]] = []
        self._serial = 0

    def at(self, time_s: float, action: Action) -> None:
        """Plans an action; one of the past runs now."""
        self._serial += 1
        heapq.heappush(self._planned, (max(time_s, self.now), self._serial, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Plans an action for `delay_s` from now."""
        self.at(self.now + delay_s, action)

    def run(self, until_s: float) -> None:
        """Runs everything that is planned up to then."""
        while self._planned and self._planned[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._planned)
            self.count += 1
            action()
        self.now = max(self.now, until_s)
