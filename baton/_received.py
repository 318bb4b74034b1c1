"""What a stream has brought so far, for both clients. Knows no channels and no calls."""

from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from baton import events
from baton._answers import to_event
from baton.v1 import inference_pb2

_EXPLANATION = "baton-explanation"
_REPORT = "baton-report-bin"


class Received:
    """The word that a generation was let in, and the tokens up to now. Not thread-safe."""

    def __init__(self, request: inference_pb2.GenerateRequest) -> None:
        """Of the generation that `request` asks for, which may go on with an earlier stream."""
        self.accepted: events.Accepted | None = None
        self.explanation = ""
        """What became of it, in words; as the call's last metadata tells it."""
        self.report: inference_pb2.RequestReport | None = None
        """The same as the wire has it."""
        earlier = [list(one.ids) for one in request.resume_from.emitted]
        self._emitted: list[list[int]] = earlier or [[] for _ in range(max(1, request.n))]

    def take(self, response: inference_pb2.GenerateResponse) -> events.Event | None:
        """The event of a message, if it is one to be seen."""
        event = to_event(response)
        if isinstance(event, events.Accepted):
            self.accepted = event
            return None
        if isinstance(event, events.Delta) and event.choice < len(self._emitted):
            self._emitted[event.choice] += [token.id for token in event.tokens]
        return event

    def take_metadata(self, metadata: Any) -> None:
        """What comes after the last message, or with an error; its report may be broken."""
        for key, value in metadata or ():
            if key == _EXPLANATION:
                self.explanation = (
                    value if isinstance(value, str) else value.decode(errors="replace")
                )
            elif key == _REPORT and isinstance(value, bytes):
                with suppress(DecodeError):
                    self.report = inference_pb2.RequestReport.FromString(value)

    def resume_point(self) -> events.ResumeFrom | None:
        """Where another stream may go on; None before the generation was let in."""
        if self.accepted is None:
            return None
        return events.ResumeFrom(self.accepted.seed, tuple(map(tuple, self._emitted)))
