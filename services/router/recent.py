"""The requests that ended lately, for those who ask what a router has been at.

Kept as the messages that go to them: a few hundred bytes each, where a report holds on to its
prompt and to the frames of its error.
"""

from collections import deque
from itertools import islice

from baton.v1 import inference_pb2
from services.router.report import Report
from services.router.report_messages import report_message

MAX_REPORTS = 2_000
"""A minute at 33 requests a second, in about a megabyte."""


class RecentReports:
    """The last reports, numbered from 1; older ones are forgotten. Belongs to one event loop."""

    def __init__(self, size: int = MAX_REPORTS) -> None:
        self._reports: deque[inference_pb2.RequestReport] = deque(maxlen=size)
        self._sequence = 0

    def keep(self, report: Report) -> None:
        """Remembers a report: a `Sink`."""
        self._reports.append(report_message(report))
        self._sequence += 1

    def after(self, sequence: int = 0, limit: int = 0) -> inference_pb2.ListRequestsResponse:
        """Reports that came after the one with that number, as far as they are remembered; the
        newest `limit` of them, where that isn't 0.

        A number above the last one is of a router that was here before: all are new then.
        """
        new = self._sequence - sequence if sequence <= self._sequence else self._sequence
        wanted = min(new, len(self._reports), limit or len(self._reports))
        newest = tuple(islice(reversed(self._reports), wanted))
        return inference_pb2.ListRequestsResponse(requests=newest[::-1], sequence=self._sequence)
