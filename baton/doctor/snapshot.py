"""What a diagnosis is made from: two pictures of the fleet, and the requests that ended between.

Can be kept as JSON and read again, also by a later version: what it does not know it leaves out.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from baton import errors
from baton.v1 import inference_pb2

M = TypeVar("M", bound=Message)

FORMAT = 1
EARLIER = 50
"""Requests that ended before, for when none ends in between."""


class Router(Protocol):
    """What is asked of a client."""

    def fleet(self) -> inference_pb2.GetFleetResponse: ...

    def requests(self, after: int = 0, limit: int = 0) -> inference_pb2.ListRequestsResponse: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Two answers of one router, `seconds` apart."""

    seconds: float
    before: inference_pb2.GetFleetResponse
    after: inference_pb2.GetFleetResponse
    requests: tuple[inference_pb2.RequestReport, ...]
    """Those that ended in between."""
    earlier: tuple[inference_pb2.RequestReport, ...] = ()
    """The last few that ended before."""

    def to_json(self) -> str:
        """As text that `from_json` reads."""
        value = {
            "format": FORMAT,
            "seconds": self.seconds,
            "before": json_format.MessageToDict(self.before),
            "after": json_format.MessageToDict(self.after),
            "requests": [json_format.MessageToDict(one) for one in self.requests],
            "earlier": [json_format.MessageToDict(one) for one in self.earlier],
        }
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Snapshot":
        """Raises InvalidRequest where the text is no snapshot."""
        try:
            value = json.loads(text)
            return cls(
                seconds=float(value["seconds"]),
                before=_parse(value["before"], inference_pb2.GetFleetResponse()),
                after=_parse(value["after"], inference_pb2.GetFleetResponse()),
                requests=tuple(
                    _parse(one, inference_pb2.RequestReport()) for one in value["requests"]
                ),
                earlier=tuple(
                    _parse(one, inference_pb2.RequestReport()) for one in value.get("earlier", ())
                ),
            )
        except (ValueError, KeyError, TypeError, json_format.ParseError) as error:
            raise errors.InvalidRequest("snapshot", f"is no snapshot of a fleet: {error}") from None

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Raises InvalidRequest where the file can't be read or is no snapshot."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise errors.InvalidRequest("snapshot", f"can't be read: {error}") from None


def take(
    router: Router,
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Snapshot:
    """Asks a router twice, `seconds` apart. Raises BatonError where it does not answer."""
    earlier = router.requests(limit=EARLIER)
    before = router.fleet()
    began = clock()
    sleep(seconds)
    after = router.fleet()
    passed = clock() - began
    ended = router.requests(after=earlier.sequence)
    return Snapshot(passed, before, after, tuple(ended.requests), tuple(earlier.requests))


def _parse(value: Any, message: M) -> M:
    return json_format.ParseDict(value, message, ignore_unknown_fields=True)
