"""What one continuation of a request's prompt is, has and holds. Does nothing by itself.

Knows nothing of the other choices: each has its own tokens, text, end, workers and attempts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton import errors
from baton.naming import RequestId, WorkerId
from baton.policy.fleet import Demand, Worker
from services.router.calls import Handoff
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
    """Every token so far, the first one included; the client has or is given each."""
    shown: int = 0
    """How many of those went through `output`."""
    finish_reason: FinishReason | None = None

    attempt: int = 0
    """Number of the current attempt: how many calls have failed or were handed over."""
    claimed: Worker | None = None
    """A decode worker whose room is claimed for the next call."""
    decoder: Worker | None = None
    """The worker of the latest decode call."""
    decode_attempts: int = 0
    migrations: int = 0
    """How many of those ended with a handoff."""
    handoff: Handoff | None = None
    """What the worker told that let it go last: from then on it needs the prompt's no more."""
    needs_kv: bool = True
    """Whether no worker has its KV: it needs the lease of the handoff."""
    recovers: bool = False
    """Whether its latest worker failed, and none has gone on from there yet."""
    given_back: bool = False
    """Whether it has ended, and its room was given back."""

    def demand(
        self, itl_target_s: float | None, cached: Mapping[WorkerId, int] | None = None
    ) -> Demand:
        """What the current attempt asks of the fleet; `cached` are hints of what is where."""
        return Demand(
            request_id=self.fleet_id,
            attempt=self.attempt,
            prompt_tokens=len(self.generation.prompt_ids),
            max_tokens=self.generation.max_tokens,
            emitted_tokens=len(self.emitted),
            itl_target_s=itl_target_s,
            cached=cached or {},
        )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt and every token so far."""
        return (*self.generation.prompt_ids, *(token.token_id for token in self.emitted))

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

    def replay(self, token_ids: Sequence[int]) -> None:
        """Takes the tokens that the client had before the stream began, and their text."""
        self.take([SampledToken(token_id) for token_id in token_ids])
        self.show()
        if self.finish_reason is None:
            self.finish_reason = self.ending.reached(self.emitted)

    def show(self) -> Delta | None:
        """The tokens that were taken since the last time, with the text that can be shown by
        now; a stop string in it ends the choice. None: there are none.

        The last token comes with all text that was held back, so that whoever has the tokens
        has the text.
        """
        tokens = tuple(self.emitted[self.shown :])
        if not tokens:
            return None
        self.shown = len(self.emitted)
        text = self.output.push(tokens)
        if self.ending.reached(self.emitted) is not None:
            text += self.output.finish()
        if self.output.stop_string is not None:
            self.finish_reason = FinishReason.STOP
        return Delta(text, tokens, self.index)

    def show_rest(self) -> Delta | None:
        """Text that is held back still, where a worker ended the output by itself."""
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
