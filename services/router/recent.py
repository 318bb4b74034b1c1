"""The requests that ended lately and those in progress, for those who ask what a router is at.

What ended is kept as the messages that go to them: a few hundred bytes each, where a report holds
on to its prompt and to the frames of its error.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice

from baton.v1 import inference_pb2
from services.router.report import Report
from services.router.report_messages import report_message, running_message

MAX_REPORTS = 2_000
"""A minute at 33 requests a second, in about a megabyte."""


MAX_RUNNING = 200

InProgress = Callable[[int], tuple[Report, ...]]
"""Reports of at most so many requests in progress, those that came last."""


class RecentReports:
    """The last reports, numbered from 1; older ones are forgotten. Belongs to one event loop."""

    def __init__(self, size: int = MAX_REPORTS, in_progress: InProgress = lambda _: ()) -> None:
        self._reports: deque[inference_pb2.RequestReport] = deque(maxlen=size)
        self._sequence = 0
        self._in_progress = in_progress

    def keep(self, report: Report) -> None:
        """Remembers a report: a `Sink`."""
        self._reports.append(report_message(report))
        self._sequence += 1

    def after(self, sequence: int = 0, limit: int = 0) -> inference_pb2.ListRequestsResponse:
        """Reports that came after the one with that number, as far as they are remembered; the
        newest `limit` of them, where that isn't 0. And requests in progress.

        A number above the last one is of a router that was here before: all are new then.
        """
        new = self._sequence - sequence if sequence <= self._sequence else self._sequence
        wanted = min(new, len(self._reports), limit or len(self._reports))
        newest = tuple(islice(reversed(self._reports), wanted))
        return inference_pb2.ListRequestsResponse(
            requests=newest[::-1],
            sequence=self._sequence,
            running=map(running_message, self._in_progress(MAX_RUNNING)),
        )
