"""Measures one request's phases, as its router sees them."""

import time
from collections.abc import Callable

from baton.naming import WorkerId
from services.router.events import Timings

Clock = Callable[[], float]
"""Seconds that never run backwards."""


class Stopwatch:
    """Starts at the request's arrival; each mark but the last counts the first time only."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._arrival = clock()
        self._turn: float | None = None
        self._first_token: float | None = None
        self._second_token: float | None = None

    @property
    def waited(self) -> float:
        """Seconds since the arrival."""
        return self._clock() - self._arrival

    def turn(self) -> None:
        """Workers were found."""
        if self._turn is None:
            self._turn = self._clock()

    def tokens(self, emitted: int) -> None:
        """Tokens came; `emitted` of them are there now."""
        if self._second_token is not None:
            return
        if self._first_token is None:
            self._first_token = self._clock()
        if emitted > 1:
            self._second_token = self._clock()

    def timings(
        self,
        *,
        handed_off: bool,
        prefill_worker: WorkerId | None,
        decode_worker: WorkerId | None,
        prefill_attempts: int,
        decode_attempts: int,
    ) -> Timings:
        """What was measured up to now, which is the end."""
        end = self._clock()
        turn = self._arrival if self._turn is None else self._turn
        first = end if self._first_token is None else self._first_token
        queue, prefill = turn - self._arrival, first - turn
        gap = None
        if handed_off and self._second_token is not None:
            gap = self._second_token - first
        return Timings(
            queue=queue,
            prefill=prefill,
            time_to_first_token=queue + prefill,
            handoff_gap=gap,
            total=end - self._arrival,
            prefill_worker=prefill_worker,
            decode_worker=decode_worker,
            prefill_attempts=prefill_attempts,
            decode_attempts=decode_attempts,
        )
