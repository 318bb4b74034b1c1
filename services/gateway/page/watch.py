"""What pages see: asked of the routers only while somebody looks, and once for all of them.

Nothing runs here by itself: a page's request that finds the last look too old makes the next
one, and whoever comes meanwhile shares it.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from baton.errors import BatonError, NotFound, PermissionDenied, Unauthenticated, Unavailable
from baton.v1 import inference_pb2, telemetry_pb2
from services.gateway.page.access import Access
from services.gateway.page.fleet_rows import fleet_row, sample_of
from services.gateway.page.flights import Flights
from services.gateway.page.history import History
from services.gateway.page.rows import Ended, Row, ended, span_rows
from services.gateway.page.upstream import Key, Upstream

EVERY_S = 1.0
"""Least time between two looks."""
MAX_ROWS = 200
"""Most requests in one answer."""

_KEY_PROBLEMS = (Unauthenticated, PermissionDenied)
Clock = Callable[[], float]
Fleet = inference_pb2.GetFleetResponse
Answers = list[tuple[Fleet, inference_pb2.ListRequestsResponse] | BatonError]


OwnSpans = Callable[[Collection[bytes]], Iterable[telemetry_pb2.Span]]
"""The spans of some traces that this process remembers."""


class Diagnosis(Protocol):
    """The doctor."""

    async def verdict(
        self, fleets: Sequence[Fleet], reports: Sequence[inference_pb2.RequestReport]
    ) -> Row | None:
        """What is wrong, in words, by this look at each router and the new reports; None where it
        can't say yet. Never raises."""
        ...


class Watch:
    """The shared look at the routers, and the memory of what was seen. For one event loop."""

    def __init__(
        self,
        routers: Sequence[Upstream],
        diagnosis: Diagnosis | None = None,
        own_spans: OwnSpans = lambda _: (),
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._routers = routers
        self._diagnosis = diagnosis
        self._own_spans = own_spans
        self._clock = clock
        self._monotonic = monotonic
        self._access = Access(routers, monotonic)
        self._looks: Flights[None] = Flights()
        self._next_look_s = monotonic()
        self._sequences = [0] * len(routers)
        self._history = History()
        self._seen: Row = {}
        self._failure: BatonError | None = None

    async def live(self, key: Key, after: int = 0) -> Row:
        """All that the page shows; of the requests those after that number, the newest ones.

        Raises Unauthenticated or PermissionDenied where the key is not an operator's, and
        another BatonError where no router answers.
        """
        await self._access.check(key)
        if self._monotonic() >= self._next_look_s:
            await self._looks.join("look", lambda: self._look(key))
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        # A page may be older than this process, and know another's numbers.
        last = self._history.last_number
        restarted = after > last
        newest = self._history.newest(MAX_ROWS, 0 if restarted else after)
        return {
            **self._seen,
            "last_number": last,
            "restarted": restarted,
            "requests": [one.row for one in newest],
        }

    async def trace(self, key: Key, request_id: str) -> Row:
        """The spans of a request, by all routers and this process. Raises NotFound where none are
        remembered, and what `live` raises."""
        answers = await asyncio.gather(*(_trace(one, key, request_id) for one in self._routers))
        good = [one for one in answers if not isinstance(one, BatonError)]
        if not good:
            raise _worst([one for one in answers if isinstance(one, BatonError)])
        spans = {span.span_id: span for answer in good for span in answer.spans}
        traces = {span.trace_id for span in spans.values()}
        spans |= {span.span_id: span for span in self._own_spans(traces)}
        silent = {name for answer in good for name in answer.silent}
        return {"spans": span_rows(spans.values()), "silent": sorted(silent)}

    async def close(self) -> None:
        """Ends what is under way."""
        await self._looks.close()
        await self._access.close()

    async def _look(self, key: Key) -> None:
        """Looks at everything once; what went wrong is for `live` to raise."""
        began_s = self._monotonic()
        try:
            answers: Answers = list(
                await asyncio.gather(
                    *(self._ask(index, key) for index in range(len(self._routers)))
                )
            )
            good = [one for one in answers if not isinstance(one, BatonError)]
            bad = [one for one in answers if isinstance(one, BatonError)]
            if good:
                running = [report for _, listed in good for report in listed.running]
                fleets = [fleet for fleet, _ in good]
                await self._take(fleets, self._reports(answers), running, bad)
            self._failure = None if good else self._told_to_all(_worst(bad))
        finally:
            self._next_look_s = began_s + EVERY_S

    def _told_to_all(self, problem: BatonError) -> BatonError:
        """What pages are told that share a look. One key's end is not theirs: each is checked
        again."""
        if not isinstance(problem, _KEY_PROBLEMS):
            return problem
        self._access.forget()
        return Unavailable("the key of another page was refused", retry_after=EVERY_S)

    async def _ask(
        self, index: int, key: Key
    ) -> tuple[Fleet, inference_pb2.ListRequestsResponse] | BatonError:
        router = self._routers[index]
        try:
            return await asyncio.gather(
                router.fleet(key), router.requests(key, after=self._sequences[index])
            )
        except BatonError as error:
            return error

    def _reports(self, answers: Answers) -> list[inference_pb2.RequestReport]:
        """New reports of all routers, in the order in which they ended."""
        reports: list[inference_pb2.RequestReport] = []
        for index, answer in enumerate(answers):
            if not isinstance(answer, BatonError):
                reports += answer[1].requests
                self._sequences[index] = answer[1].sequence
        return reports

    async def _take(
        self,
        fleets: Sequence[Fleet],
        reports: Sequence[inference_pb2.RequestReport],
        running: Sequence[inference_pb2.RequestReport],
        bad: Sequence[BatonError],
    ) -> None:
        now_s = self._clock()
        # Long enough for streams to notice, where there are many: not on their thread.
        self._history.add_requests(await asyncio.to_thread(_ended_in_order, reports))
        in_progress = await asyncio.to_thread(_rows, running)
        self._history.add_sample(sample_of(now_s, fleets))
        verdict = None
        if self._diagnosis is not None:
            verdict = await self._diagnosis.verdict(fleets, reports)
        numbers = await asyncio.to_thread(self._numbers, now_s)
        self._seen = {
            "now_s": now_s,
            "problem": "; ".join(one.message for one in bad),
            **fleet_row(fleets),
            "verdict": verdict,
            "in_progress": in_progress,
            **numbers,
        }

    def _numbers(self, now_s: float) -> Row:
        """On another thread; only a look changes the history, and it waits for this."""
        return {"summary": self._history.summary(now_s), "series": self._history.series(now_s)}


def _rows(running: Sequence[inference_pb2.RequestReport]) -> list[Row]:
    return [ended(report).row for report in running]


def _ended_in_order(reports: Sequence[inference_pb2.RequestReport]) -> list[Ended]:
    return sorted(map(ended, reports), key=lambda one: one.ended_s)


async def _trace(
    router: Upstream, key: Key, request_id: str
) -> inference_pb2.GetTraceResponse | BatonError:
    try:
        return await router.trace(key, request_id)
    except BatonError as error:
        return error


def _worst(problems: Sequence[BatonError]) -> BatonError:
    """The one to tell: about the key before anything else, and that nothing is known last."""
    keys = [one for one in problems if isinstance(one, _KEY_PROBLEMS)]
    others = [one for one in problems if not isinstance(one, NotFound)]
    return next(iter([*keys, *others, *problems]), Unavailable("no router is configured"))
