"""What one continuation of a request's prompt is, has and holds. Does nothing by itself.

Knows nothing of the other choices: each has its own tokens, text, end, workers and attempts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton import errors
from baton.naming import RequestId
from baton.policy.fleet import Demand, Worker
from services.router.ending import Ending
from services.router.events import CompletedChoice, Delta, FinishReason, SampledToken
from services.router.output import Output
from services.router.validation import Generation


@dataclass(slots=True)
class Choice:
    """One choice in progress."""

    index: int
    fleet_id: RequestId
    """The id that the fleet knows it by."""
    generation: Generation
    ending: Ending
    output: Output

    emitted: list[SampledToken] = field(default_factory=list)
    """Every token so far, the first one included; the client is given each."""
    finish_reason: FinishReason | None = None

    attempt: int = 0
    """Number of the current attempt: how many calls have failed."""
    claimed: Worker | None = None
    """A decode worker whose room is claimed for the next call."""
    decoder: Worker | None = None
    """The worker of the latest decode call."""
    decode_attempts: int = 0
    needs_kv: bool = True
    """Whether no worker has the prompt's KV for it yet: it needs the handoff's lease."""
    given_back: bool = False
    """Whether it has ended, and its room was given back."""

    @property
    def demand(self) -> Demand:
        """What the current attempt asks of the fleet."""
        return Demand(
            request_id=self.fleet_id,
            attempt=self.attempt,
            prompt_tokens=len(self.generation.prompt_ids),
            max_tokens=self.generation.max_tokens,
        )

    @property
    def ended(self) -> bool:
        """Whether no token will follow those that there are."""
        return self.finish_reason is not None

    @property
    def decodes(self) -> bool:
        """Whether a worker is at work for it."""
        return not (self.needs_kv or self.given_back)

    def take(self, tokens: Sequence[SampledToken]) -> None:
        """Counts tokens that came from a worker. InternalError where they are too many."""
        if len(self.emitted) + len(tokens) > self.generation.max_tokens:
            raise errors.InternalError("a worker streamed more tokens than were asked for")
        self.emitted.extend(tokens)

    def show(self, tokens: Sequence[SampledToken]) -> Delta:
        """Tokens that were taken, with the text that can be shown by now; a stop string in it
        ends the choice."""
        text = self.output.push(tokens)
        if self.output.stop_string is not None:
            self.finish_reason = FinishReason.STOP
        return Delta(text, tuple(tokens), self.index)

    def show_rest(self) -> Delta | None:
        """The text that was held back until the end, if any."""
        rest = self.output.finish()
        if self.output.stop_string is not None:
            self.finish_reason = FinishReason.STOP
        return Delta(rest, (), self.index) if rest else None

    def completed(self) -> CompletedChoice:
        """The report at the end."""
        if self.finish_reason is None:
            raise errors.InternalError("the output ended without a reason")
        return CompletedChoice(
            index=self.index,
            finish_reason=self.finish_reason,
            stop_string=self.output.stop_string,
            completion_tokens=len(self.emitted),
            decode_worker=self.decoder.worker_id if self.decoder else None,
        )
