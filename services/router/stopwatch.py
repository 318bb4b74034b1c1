"""Measures one request's phases, as its router sees them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from baton.naming import WorkerId
from services.common.telemetry.tally import SECONDS_BUCKETS, Tally
from services.router.events import Timings

Clock = Callable[[], float]
"""Seconds that never run backwards."""

T = TypeVar("T")

_KEPT = 3


@dataclass(slots=True)
class _Tokens:
    """When the tokens of one choice came."""

    first: list[float] = field(default_factory=list)
    """Of the first few."""
    last: float = 0.0
    count: int = 0

    def came(self, now: float, count: int) -> None:
        self.first += [now] * min(count, _KEPT - len(self.first))
        self.last = now
        self.count += count


class Stopwatch:
    """Starts at the request's arrival. The turn counts the first time only; tokens that a client
    had before the stream began don't count."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._arrival = clock()
        self._turn: float | None = None
        self._choices: dict[int, _Tokens] = {}
        self.gaps = Tally(SECONDS_BUCKETS)
        """Seconds from each token of a choice to its next; tokens that come together count 0."""

    @property
    def waited(self) -> float:
        """Seconds since the arrival."""
        return self._clock() - self._arrival

    @property
    def arrived(self) -> float:
        """When the request arrived, by the clock."""
        return self._arrival

    @property
    def turned(self) -> float | None:
        """When workers were found first, by the clock; None: not yet."""
        return self._turn

    @property
    def began(self) -> float | None:
        """When the first token of any choice came, by the clock; None: not yet."""
        return self._earliest(0, None)

    def turn(self) -> None:
        """Workers were found."""
        if self._turn is None:
            self._turn = self._clock()

    def tokens(self, choice: int, count: int) -> None:
        """So many tokens of a choice came."""
        if not count:
            return
        now, known = self._clock(), self._choices.setdefault(choice, _Tokens())
        if known.count:
            self.gaps.observe(now - known.last)
        if count > 1:
            self.gaps.observe(0.0, count=count - 1)
        known.came(now, count)

    @property
    def itl_s(self) -> float | None:
        """Mean inter-token latency, over all choices; None: none has two tokens."""
        intervals = sum(one.count - 1 for one in self._choices.values())
        if intervals == 0:
            return None
        return sum(one.last - one.first[0] for one in self._choices.values()) / intervals

    def handoff(self, choice: int) -> tuple[float, float] | None:
        """Seconds from the first to the second token of a choice, and on to the third; None
        where those didn't come."""
        first = self._choices[choice].first if choice in self._choices else []
        return (first[1] - first[0], first[2] - first[1]) if len(first) == _KEPT else None

    def timings(
        self,
        *,
        handed_off: bool,
        prefill_worker: WorkerId | None,
        decode_worker: WorkerId | None,
        prefill_attempts: int,
        decode_attempts: int,
        predicted_ttft: float = 0.0,
        predicted_itl: float = 0.0,
        migrations: int = 0,
    ) -> Timings:
        """What was measured up to now, which is the end."""
        end = self._clock()
        first = self._earliest(0, end)
        turn = first if self._turn is None else self._turn
        queue, prefill = turn - self._arrival, first - turn
        second = self._earliest(1, None)
        return Timings(
            queue=queue,
            prefill=prefill,
            time_to_first_token=queue + prefill,
            handoff_gap=second - first if handed_off and second is not None else None,
            total=end - self._arrival,
            prefill_worker=prefill_worker,
            decode_worker=decode_worker,
            prefill_attempts=prefill_attempts,
            decode_attempts=decode_attempts,
            predicted_ttft=predicted_ttft,
            predicted_itl=predicted_itl,
            migrations=migrations,
        )

    def _earliest(self, index: int, otherwise: T) -> float | T:
        """When the first choice had its token at `index`."""
        times = [one.first[index] for one in self._choices.values() if len(one.first) > index]
        return min(times, default=otherwise)
