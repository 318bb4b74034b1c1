"""What one request is, has and holds at a moment of its life. Does nothing by itself.

A `Life` is the request: its prompt, which is computed once, and what came of that. Its
choices (`services.router.choice`) are the continuations of that prompt.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton import errors, naming
from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.fleet import Worker
from services.router.calls import (
    DecodeCall,
    FetchParts,
    HandedOff,
    Handoff,
    Prefilled,
    PrefillParts,
    Started,
)
from services.router.choice import Choice
from services.router.deadline import Deadline
from services.router.dispatch import Placement
from services.router.events import (
    Admitted,
    Completed,
    PromptShown,
    SampledToken,
    Timings,
    TokenUsage,
)
from services.router.intake import Accepted
from services.router.leases import Lease
from services.router.request_trace import RequestTrace
from services.router.stopwatch import Stopwatch
from services.router.validation import Generation

_SUFFIX_CHARACTERS = 12
_CHOICE_CHARACTERS = 3


@dataclass(slots=True)
class Life:
    """One request in progress."""

    request_id: RequestId
    """The client's."""
    generation: Generation
    """Its `request_id` is the one that the fleet sees: unique, whatever clients call theirs."""
    choices: tuple[Choice, ...]
    """At least one. The first has the fleet's name of the request for its own."""
    leader: Choice
    """The choice that goes ahead: the prompt is computed in its name."""
    deadline: Deadline
    watch: Stopwatch
    trace: RequestTrace

    prompt_text: str | None
    """None unless the prompt is to be echoed."""
    prompt_logprobs: tuple[SampledToken, ...] | None = None
    """The prompt's tokens from the second one on; None as long as nobody told."""
    prompt_shown: bool = False
    cached_tokens: int | None = None
    prefill_parts: PrefillParts | None = None
    fetch: FetchParts = field(default_factory=FetchParts)

    placement: Placement | None = None
    """Where it was placed last; None before its turn."""
    predicted_ttft_s: float = 0.0
    """As its first placement had it."""
    failed: set[tuple[WorkerId, Incarnation]] = field(default_factory=set)
    """Workers that failed this request, or drain."""
    prefiller: Worker | None = None
    """The worker that computed the prompt, once it has."""
    prefill_attempts: int = 0
    leases: set[Lease] = field(default_factory=set)
    """All that were ever held for it."""
    handoff: Handoff | None = None
    """Of the prompt. None before a prefill worker made one, and where none is needed."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first token of any choice: someone has computed the prompt."""

    @classmethod
    def of(
        cls, accepted: Accepted, deadline: Deadline, watch: Stopwatch, trace: RequestTrace
    ) -> "Life":
        """The request at its beginning."""
        asked = accepted.generation
        own = replace(asked, request_id=_unique(asked.request_id))
        choices = tuple(
            Choice(index, _name(own.request_id, index), own, accepted.ending, output)
            for index, output in enumerate(accepted.outputs)
        )
        for choice, ids in zip(choices, asked.emitted, strict=False):
            choice.replay(ids)
        leader = next((choice for choice in choices if not choice.ended), choices[0])
        prompt_text = accepted.prompt_text
        life = cls(asked.request_id, own, choices, leader, deadline, watch, trace, prompt_text)
        life.prompt_shown = asked.resumed
        return life

    @property
    def trace_id(self) -> bytes:
        """Of its trace; empty: it has none."""
        return self.trace.trace_id

    @property
    def ended(self) -> bool:
        """Whether no token will follow for any choice."""
        return all(choice.ended for choice in self.choices)

    @property
    def itl_target_s(self) -> float | None:
        """Inter-token latency to hold, as far as it is known."""
        placement = self.placement
        return placement.itl_target_s if placement else self.generation.urgency.itl_target_s

    @property
    def needed_leases(self) -> set[Lease]:
        """Those of handoffs whose KV a choice has yet to fetch."""
        waiting = (choice for choice in self.choices if choice.needs_kv)
        handoffs = (choice.handoff or self.handoff for choice in waiting)
        return {handoff.lease for handoff in handoffs if handoff is not None}

    @property
    def decodes(self) -> bool:
        """Whether a worker is at work for one of the choices."""
        return any(choice.decodes for choice in self.choices)

    def layout_of(self, choice: Choice) -> str | None:
        """KV layout of what the choice goes on from; None where there is no handoff."""
        handoff = choice.handoff or self.handoff
        return handoff.layout if handoff else None

    def near(self, choice: Choice) -> WorkerId | None:
        """The decode worker whose cache has the prompt's KV, where there is no handoff."""
        decoder = None if choice.handoff or self.prefiller else self.leader.decoder
        return decoder.worker_id if decoder else None

    def decode_call(self, choice: Choice, worker: Worker) -> DecodeCall:
        """What `worker` is asked, to go on with `choice`. From the token ids where it can't read
        the handoff, or the prompt's log probabilities are wanted still: they aren't in KV."""
        wants_prompt = (
            self.prompt_logprobs is None and choice is self.leader and not self.prompt_shown
        )
        handoff = choice.handoff or self.handoff
        if handoff is not None and handoff.layout != worker.layout_fingerprint:
            handoff = None
        if wants_prompt and self.generation.sampling.prompt_logprobs is not None:
            handoff = None
        return DecodeCall(
            request_id=choice.fleet_id,
            attempt=choice.attempt,
            choice=choice.index,
            generation=self.generation,
            emitted=tuple(choice.emitted),
            handoff=handoff,
            wants_prompt=wants_prompt,
            itl_target_s=self.itl_target_s,
        )

    def prefilled(self, worker: Worker, answer: Prefilled) -> None:
        """Counts the first tokens, which `worker` computed the prompt for."""
        self.prefiller = worker
        self.handoff = answer.handoff
        self.cached_tokens = answer.cached_tokens
        self.prompt_logprobs = answer.prompt_logprobs
        self.prefill_parts = answer.parts
        for choice, first in zip(self.choices, answer.first_tokens, strict=True):
            self.take(choice, (first.token,))
            choice.finish_reason = first.finish_reason

    def started(self, choice: Choice, told: Started) -> None:
        """A decode worker has the KV of a choice, as far as there is any."""
        handed_off = choice.handoff is not None or self.handoff is not None
        again = told.missing_tokens - 1 if handed_off else 0
        self.fetch += replace(told.fetch, missing_tokens=max(0, again))
        if self.cached_tokens is None:
            self.cached_tokens = told.cached_tokens

    def placed(self, placement: Placement) -> None:
        """Notes where it goes."""
        self.watch.turn()
        if self.placement is None:
            self.predicted_ttft_s = placement.predicted_ttft_s
        self.placement = placement
        self.trace.placed(self)
        self.leader.claimed = placement.decode

    def moved(self, choice: Choice, worker: Worker, told: HandedOff) -> None:
        """A choice is to go on elsewhere, from what `worker` told. InternalError where that is
        not what it streamed."""
        if told.emitted != tuple(token.token_id for token in choice.emitted):
            raise errors.InternalError(
                f"worker {worker.worker_id} handed over other tokens than it streamed"
            )
        choice.handoff, choice.needs_kv = told.handoff, True
        self.leases.add(told.handoff.lease)
        choice.attempt += 1
        choice.migrations += 1
        if told.draining:
            self.failed.add((worker.worker_id, worker.incarnation))

    def take(self, choice: Choice, tokens: Sequence[SampledToken]) -> None:
        """Counts tokens that came from a worker. InternalError where they are too many."""
        choice.take(tokens)
        self.watch.tokens(choice.index, len(tokens))
        self.trace.first_token(self)
        self.begun.set()

    def admitted(self) -> Admitted:
        """The word that it was let in."""
        seed = self.generation.sampling.seed
        return Admitted(self.request_id, seed, self.predicted_ttft_s)

    def show_prompt(self) -> PromptShown | None:
        """The prompt, the first time that it is asked for, if the client wants it.

        InternalError where its log probabilities are wanted and no worker told them.
        """
        wants_logprobs = self.generation.sampling.prompt_logprobs is not None
        if self.prompt_shown or (self.prompt_text is None and not wants_logprobs):
            return None
        self.prompt_shown = True
        first, *others = map(SampledToken, self.generation.prompt_ids)
        tokens = (first, *others)
        if wants_logprobs:
            told = self.prompt_logprobs or ()
            if [token.token_id for token in told] != [token.token_id for token in others]:
                raise errors.InternalError("no worker told the prompt's log probabilities")
            tokens = (first, *told)
        return PromptShown(self.prompt_text or "", tokens, wants_logprobs)

    def completed(self) -> Completed:
        """The report at the end."""
        return Completed(
            choices=tuple(choice.completed() for choice in self.choices),
            usage=self.usage(),
            timings=self.timings(),
            request_id=self.request_id,
            seed=self.generation.sampling.seed,
        )

    def usage(self) -> TokenUsage:
        """Tokens up to now."""
        prompt_tokens = len(self.generation.prompt_ids)
        return TokenUsage(
            prompt_tokens=prompt_tokens,
            completion_tokens=sum(len(choice.emitted) for choice in self.choices),
            cached_tokens=min(self.cached_tokens or 0, prompt_tokens),
        )

    def timings(self) -> Timings:
        """How long it took up to now, and where."""
        prefiller, decoder = self.prefiller or self.leader.decoder, self.choices[0].decoder
        return self.watch.timings(
            handed_off=self.handoff is not None,
            prefill_worker=prefiller.worker_id if prefiller else None,
            decode_worker=decoder.worker_id if decoder else None,
            prefill_attempts=self.prefill_attempts,
            decode_attempts=max(choice.decode_attempts for choice in self.choices),
            predicted_ttft=self.predicted_ttft_s,
            predicted_itl=self.placement.predicted_itl_s if self.placement else 0.0,
            migrations=sum(choice.migrations for choice in self.choices),
        )


def _unique(request_id: RequestId) -> RequestId:
    suffix = naming.new_id("")[:_SUFFIX_CHARACTERS]
    kept = naming.MAX_REQUEST_ID_CHARACTERS - len(suffix) - _CHOICE_CHARACTERS
    return RequestId(request_id[:kept] + suffix)


def _name(fleet_id: RequestId, index: int) -> RequestId:
    """Each choice is a request of its own to the fleet, whose claims and calls go by id."""
    return RequestId(f"{fleet_id}.{index}") if index else fleet_id
