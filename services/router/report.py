"""What became of one request: made once, when it ends, for everyone who wants to know.

Values; knows no protobuf, no metrics and no files.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice

from baton import errors
from baton.naming import RequestId
from services.common.telemetry.tally import SECONDS_BUCKETS, Tally
from services.router.calls import FetchParts, PrefillParts
from services.router.dispatch import Placement
from services.router.events import Timings, TokenUsage
from services.router.life import Life
from services.router.validation import Generation

_TARGET_REASONS = ("TARGET_OUT_OF_REACH", "TARGET_MISSED")


class Outcome(Enum):
    """How a request ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """Its client went away."""
    REFUSED = "refused"
    """Its targets could not be held."""
    FAILED = "failed"

    @classmethod
    def of(cls, error: BaseException | None) -> "Outcome":
        """The outcome of a request that ended with `error`."""
        match error:
            case None:
                return cls.COMPLETED
            case asyncio.CancelledError() | GeneratorExit():
                return cls.CANCELLED
            case errors.Exhausted() if error.reason in _TARGET_REASONS:
                return cls.REFUSED
        return cls.FAILED


def reason_of(error: BaseException | None) -> str:
    """Why a request that ended with `error` failed, for programs; empty where it did not."""
    if Outcome.of(error) in (Outcome.COMPLETED, Outcome.CANCELLED):
        return ""
    return getattr(error, "reason", "") or type(error).__name__


@dataclass(frozen=True, slots=True)
class Report:
    """One request at its end."""

    generation: Generation
    request_id: str
    """The client's."""
    trace_id: bytes
    """Empty: it has none."""
    arrival_s: float
    """Seconds since 1970."""
    outcome: Outcome
    error: BaseException | None
    placement: Placement | None
    """None where it never had a place."""
    usage: TokenUsage
    """Tokens up to the end, however that came."""
    timings: Timings
    itl_s: float | None
    """Mean inter-token latency over its choices; None: none had two tokens."""
    output_tokens: int
    """Of the leader alone."""
    prefill: PrefillParts | None
    fetch: FetchParts
    emitted: tuple[int, ...] = ()
    """Tokens of each choice, those included that the client had before the stream began."""
    gaps: Tally = field(default_factory=partial(Tally, SECONDS_BUCKETS))
    """Seconds between tokens, over its choices."""

    @property
    def reason(self) -> str:
        """Why it failed, for programs; empty where it did not."""
        return reason_of(self.error)

    @property
    def ttft_held(self) -> bool | None:
        """Whether the first token came in time; None where it had no target or no token."""
        if self.placement is None or not self.usage.completion_tokens:
            return None
        return self.timings.time_to_first_token <= self.placement.ttft_target_s

    @property
    def itl_held(self) -> bool | None:
        """Whether the mean inter-token latency held; None where it had no target or no token."""
        placement = self.placement
        if placement is None or placement.itl_target_s is None or self.itl_s is None:
            return None
        return self.itl_s <= placement.itl_target_s


Sink = Callable[[Report], None]
"""Takes each report; must neither block nor raise."""
OnArrival = Callable[[Generation], None]
"""Takes each request that is valid, as it comes; must neither block nor raise."""


class Reporter:
    """Makes the reports, and knows who is in progress. Belongs to one event loop."""

    def __init__(
        self, sinks: Sequence[Sink] = (), on_arrival: OnArrival = lambda _generation: None
    ) -> None:
        self._sinks = sinks
        self._on_arrival = on_arrival
        self._running: dict[RequestId, Life] = {}
        """By the fleet's ids, which are unique; who came last is last."""

    @contextmanager
    def reporting(self, life: Life, told: Sink | None = None) -> Iterator[None]:
        """A request runs inside the block; what became of it is told when that ends, to `told`
        too."""
        own_id = life.generation.request_id
        self._running[own_id] = life
        self._on_arrival(life.generation)
        try:
            yield
        except BaseException as error:
            self._tell(life, error, told)
            raise
        else:
            self._tell(life, None, told)
        finally:
            del self._running[own_id]

    def in_progress(self, most: int) -> tuple[Report, ...]:
        """Reports of the `most` requests that came last of those inside a block, the oldest
        first, as if they had ended now."""
        newest = islice(reversed(self._running.values()), most)
        return tuple(_report(life, None) for life in newest)[::-1]

    def trace_of(self, request_id: str) -> bytes | None:
        """The trace of a client's request that is in progress; None where there is none."""
        newest = reversed(self._running.values())
        return next((one.trace_id for one in newest if one.request_id == request_id), None)

    def _tell(self, life: Life, error: BaseException | None, told: Sink | None) -> None:
        report = _report(life, error)
        for sink in (*self._sinks, *([told] if told else [])):
            sink(report)


def _report(life: Life, error: BaseException | None) -> Report:
    return Report(
        generation=life.generation,
        request_id=life.request_id,
        trace_id=life.trace_id,
        arrival_s=time.time() - life.watch.waited,
        outcome=Outcome.of(error),
        error=error,
        placement=life.placement,
        usage=life.usage(),
        timings=life.timings(),
        itl_s=life.watch.itl_s,
        output_tokens=len(life.leader.emitted),
        prefill=life.prefill_parts,
        fetch=life.fetch,
        emitted=tuple(len(choice.emitted) for choice in life.choices),
        gaps=life.watch.gaps,
    )
