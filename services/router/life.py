"""What one request is, has and holds at a moment of its life. Does nothing by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton import errors, naming
from baton.naming import Incarnation, RequestId, WorkerId
from baton.policy.fleet import Demand, Worker
from services.router.deadline import Deadline
from services.router.ending import Ending
from services.router.events import Completed, FinishReason, SampledToken, TokenUsage
from services.router.leases import Lease
from services.router.legs import Handoff, Prefilled
from services.router.stopwatch import Stopwatch
from services.router.validation import Generation

_SUFFIX_CHARACTERS = 12


@dataclass(slots=True)
class Life:
    """One request in progress."""

    request_id: RequestId
    """The client's."""
    generation: Generation
    """Its `request_id` is the one that the fleet sees: unique, whatever clients call theirs."""
    ending: Ending
    deadline: Deadline
    watch: Stopwatch

    emitted: list[SampledToken] = field(default_factory=list)
    """Every token so far, the first one included; the client has been given each."""
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None

    attempt: int = 0
    """Number of the current attempt: how many calls have failed."""
    failed: set[tuple[WorkerId, Incarnation]] = field(default_factory=set)
    """Workers that failed this request."""

    prefiller: Worker | None = None
    """The worker that computed the prompt, once it has."""
    prefill_attempts: int = 0
    lease: Lease | None = None
    """Holds the blobs of the latest prefill attempt."""
    handoff: Handoff | None = None
    """None before a prefill worker made one, and where none is needed."""

    claimed: Worker | None = None
    """A decode worker whose room is claimed for the next call."""
    decoder: Worker | None = None
    """The worker of the latest decode call."""
    decode_attempts: int = 0

    @classmethod
    def of(
        cls, generation: Generation, ending: Ending, deadline: Deadline, watch: Stopwatch
    ) -> "Life":
        """The request at its beginning."""
        own = replace(generation, request_id=_unique(generation.request_id))
        return cls(generation.request_id, own, ending, deadline, watch)

    @property
    def fleet_id(self) -> RequestId:
        """The id that the fleet knows the request by."""
        return self.generation.request_id

    @property
    def demand(self) -> Demand:
        """What the current attempt asks of the fleet."""
        return Demand(
            request_id=self.fleet_id,
            attempt=self.attempt,
            prompt_tokens=len(self.generation.prompt_ids),
            max_tokens=self.generation.max_tokens,
        )

    def handoff_for(self, worker: Worker) -> Handoff | None:
        """The handoff, where there is one that `worker` can read."""
        if self.prefiller is None or self.prefiller.layout_fingerprint != worker.layout_fingerprint:
            return None
        return self.handoff

    def prefilled(self, worker: Worker, answer: Prefilled) -> None:
        """Counts the first token, which `worker` computed the prompt for."""
        self.prefiller = worker
        self.handoff = answer.handoff
        self.cached_tokens = answer.cached_tokens
        self.take((answer.first_token,))
        self.finish_reason = answer.finish_reason

    def take(self, tokens: Sequence[SampledToken]) -> None:
        """Counts tokens that came from a worker. InternalError where they are too many."""
        if len(self.emitted) + len(tokens) > self.generation.max_tokens:
            raise errors.InternalError("a worker streamed more tokens than were asked for")
        self.emitted.extend(tokens)
        self.watch.tokens(len(self.emitted))

    def completed(self, stop_string: str | None) -> Completed:
        """The report at the end."""
        prompt_tokens = len(self.generation.prompt_ids)
        prefiller = self.prefiller or self.decoder
        timings = self.watch.timings(
            handed_off=self.handoff is not None,
            prefill_worker=prefiller.worker_id if prefiller else None,
            decode_worker=self.decoder.worker_id if self.decoder else None,
            prefill_attempts=self.prefill_attempts,
            decode_attempts=self.decode_attempts,
        )
        reason = FinishReason.STOP if stop_string is not None else self.finish_reason
        if reason is None:
            raise errors.InternalError("the output ended without a reason")
        return Completed(
            finish_reason=reason,
            stop_string=stop_string,
            usage=TokenUsage(
                prompt_tokens=prompt_tokens,
                completion_tokens=len(self.emitted),
                cached_tokens=min(self.cached_tokens or 0, prompt_tokens),
            ),
            timings=timings,
            request_id=self.request_id,
            seed=self.generation.sampling.seed,
        )


def _unique(request_id: RequestId) -> RequestId:
    suffix = naming.new_id("")[:_SUFFIX_CHARACTERS]
    kept = naming.MAX_REQUEST_ID_CHARACTERS - len(suffix)
    return RequestId(request_id[:kept] + suffix)
