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
from services.router.choice import Choice
from services.router.deadline import Deadline
from services.router.events import Completed, PromptShown, SampledToken, TokenUsage
from services.router.intake import Accepted
from services.router.leases import Lease
from services.router.legs import DecodeCall, Handoff, Prefilled
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
    deadline: Deadline
    watch: Stopwatch

    prompt_text: str | None
    """None unless the prompt is to be echoed."""
    prompt_logprobs: tuple[SampledToken, ...] | None = None
    """The prompt's tokens from the second one on; None as long as nobody told."""
    prompt_shown: bool = False
    cached_tokens: int | None = None

    failed: set[tuple[WorkerId, Incarnation]] = field(default_factory=set)
    """Workers that failed this request."""
    prefiller: Worker | None = None
    """The worker that computed the prompt, once it has."""
    prefill_attempts: int = 0
    lease: Lease | None = None
    """Holds the blobs of the latest prefill attempt."""
    handoff: Handoff | None = None
    """None before a prefill worker made one, and where none is needed."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first token of any choice: someone has computed the prompt."""

    @classmethod
    def of(cls, accepted: Accepted, deadline: Deadline, watch: Stopwatch) -> "Life":
        """The request at its beginning."""
        asked = accepted.generation
        own = replace(asked, request_id=_unique(asked.request_id))
        choices = tuple(
            Choice(index, _name(own.request_id, index), own, accepted.ending, output)
            for index, output in enumerate(accepted.outputs)
        )
        return cls(asked.request_id, own, choices, deadline, watch, accepted.prompt_text)

    @property
    def first(self) -> Choice:
        """The choice that goes ahead: the prompt is computed in its name."""
        return self.choices[0]

    @property
    def needs_lease(self) -> bool:
        """Whether a choice has yet to fetch the prompt's KV."""
        return any(choice.needs_kv for choice in self.choices)

    @property
    def decodes(self) -> bool:
        """Whether a worker is at work for one of the choices."""
        return any(choice.decodes for choice in self.choices)

    @property
    def layout(self) -> str | None:
        """KV layout of the handoff; None where there is none."""
        return self.prefiller.layout_fingerprint if self.prefiller else None

    @property
    def holder(self) -> WorkerId | None:
        """The decode worker whose cache has the prompt's KV, where there is no handoff."""
        decoder = None if self.prefiller else self.first.decoder
        return decoder.worker_id if decoder else None

    def handoff_for(self, worker: Worker) -> Handoff | None:
        """The handoff, where there is one that `worker` can read."""
        return self.handoff if self.layout == worker.layout_fingerprint else None

    def decode_call(self, choice: Choice, worker: Worker) -> DecodeCall:
        """What `worker` is asked, to go on with `choice`."""
        return DecodeCall(
            request_id=choice.fleet_id,
            attempt=choice.attempt,
            choice=choice.index,
            generation=self.generation,
            emitted=tuple(choice.emitted),
            handoff=self.handoff_for(worker),
            wants_prompt=self.prompt_logprobs is None and choice is self.first,
        )

    def prefilled(self, worker: Worker, answer: Prefilled) -> None:
        """Counts the first tokens, which `worker` computed the prompt for."""
        self.prefiller = worker
        self.handoff = answer.handoff
        self.cached_tokens = answer.cached_tokens
        self.prompt_logprobs = answer.prompt_logprobs
        for choice, first in zip(self.choices, answer.first_tokens, strict=True):
            self.take(choice, (first.token,))
            choice.finish_reason = first.finish_reason

    def take(self, choice: Choice, tokens: Sequence[SampledToken]) -> None:
        """Counts tokens that came from a worker. InternalError where they are too many."""
        choice.take(tokens)
        self.watch.tokens(len(choice.emitted))
        self.begun.set()

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
        return PromptShown(self.prompt_text or "", tokens)

    def completed(self) -> Completed:
        """The report at the end."""
        prompt_tokens = len(self.generation.prompt_ids)
        prefiller = self.prefiller or self.first.decoder
        choices = tuple(choice.completed() for choice in self.choices)
        timings = self.watch.timings(
            handed_off=self.handoff is not None,
            prefill_worker=prefiller.worker_id if prefiller else None,
            decode_worker=choices[0].decode_worker,
            prefill_attempts=self.prefill_attempts,
            decode_attempts=max(choice.decode_attempts for choice in self.choices),
        )
        return Completed(
            choices=choices,
            usage=TokenUsage(
                prompt_tokens=prompt_tokens,
                completion_tokens=sum(choice.completion_tokens for choice in choices),
                cached_tokens=min(self.cached_tokens or 0, prompt_tokens),
            ),
            timings=timings,
            request_id=self.request_id,
            seed=self.generation.sampling.seed,
        )


def _unique(request_id: RequestId) -> RequestId:
    suffix = naming.new_id("")[:_SUFFIX_CHARACTERS]
    kept = naming.MAX_REQUEST_ID_CHARACTERS - len(suffix) - _CHOICE_CHARACTERS
    return RequestId(request_id[:kept] + suffix)


def _name(fleet_id: RequestId, index: int) -> RequestId:
    """Each choice is a request of its own to the fleet, whose claims and calls go by id."""
    return RequestId(f"{fleet_id}.{index}") if index else fleet_id
