"""What workers are asked for a request, and what they answer: the router's values and the wire's.

Pure conversions; knows no channels, deadlines or failures.
"""

from dataclasses import dataclass

from baton import errors, naming
from baton.naming import RequestId
from baton.policy.fleet import Worker
from baton.v1 import decode_pb2, kv_pb2, prefill_pb2, sampling_pb2
from baton.values import seconds
from services.common.durations import to_duration
from services.router import messages
from services.router.events import FinishReason, SampledToken
from services.router.leases import Lease
from services.router.validation import Generation


@dataclass(frozen=True, slots=True)
class Handoff:
    """What a worker tells the one that goes on. Only this module looks inside."""

    message: kv_pb2.Handoff
    layout: str
    """KV layout (fingerprint) of the blobs that it names."""
    lease: Lease
    """Holds those blobs."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a choice."""

    token: SampledToken
    finish_reason: FinishReason | None
    """None where the choice goes on."""


@dataclass(frozen=True, slots=True)
class PrefillParts:
    """Parts of a prefill leg in seconds, as its worker measured them."""

    waiting_s: float = 0.0
    computing_s: float = 0.0
    publishing_s: float = 0.0
    computed_tokens: int = 0
    published_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FetchParts:
    """KV that decode workers fetched."""

    seconds: float = 0.0
    bytes: int = 0
    missing_tokens: int = 0
    """Tokens that were handed over and had to be computed again."""

    def __add__(self, other: "FetchParts") -> "FetchParts":
        return FetchParts(
            self.seconds + other.seconds,
            self.bytes + other.bytes,
            self.missing_tokens + other.missing_tokens,
        )


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A computed prompt."""

    first_tokens: tuple[FirstToken, ...]
    """Of each choice, by index."""
    handoff: Handoff | None
    """Present exactly when a choice goes on; it has the state of all that do."""
    cached_tokens: int
    prompt_logprobs: tuple[SampledToken, ...]
    """Of the prompt's tokens from the second one on; empty unless asked for."""
    parts: PrefillParts = PrefillParts()


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """What a decode worker is asked: to go on with one choice after `emitted`."""

    request_id: RequestId
    attempt: int
    choice: int
    generation: Generation
    emitted: tuple[SampledToken, ...]
    handoff: Handoff | None
    """None: from the token ids."""
    wants_prompt: bool
    """Whether the prompt's log probabilities, if asked for, are not known yet."""
    itl_target_s: float | None = None
    """Inter-token latency that it should have; None: any."""


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence has its KV: it needs the handoff's lease no more."""

    cached_tokens: int
    missing_tokens: int = 1
    """To be computed before the next one can be sampled; 1 after a whole handoff."""
    fetch: FetchParts = FetchParts()


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt's log probabilities, from its second token on."""

    prompt_logprobs: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one step."""

    tokens: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence ended."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The worker let the sequence go, which goes on elsewhere."""

    handoff: Handoff
    """Its lease is the router's to renew and to release from now on."""
    emitted: tuple[int, ...]
    """Ids of all tokens so far."""
    draining: bool
    """Whether that is since the worker drains; else it had no room for more."""


DecodeEvent = Started | Prompted | Tokens | Finished | HandedOff
"""`Started` comes first; the last is one of the last two."""


def prefill_request(
    worker: Worker, attempt: int, generation: Generation, lease: Lease
) -> prefill_pb2.PrefillRequest:
    """What `worker` is asked, to compute the prompt of `generation`."""
    return prefill_pb2.PrefillRequest(
        request_id=generation.request_id,
        attempt=attempt,
        incarnation=worker.incarnation,
        layout_fingerprint=worker.layout_fingerprint,
        prompt_token_ids=generation.prompt_ids,
        sampling=messages.sampling_message(generation),
        lease_id=lease.lease_id,
        tenant_salt=generation.salt,
        choices=generation.choices,
    )


def prefilled(
    answer: prefill_pb2.PrefillResponse, choices: int, worker: Worker, lease: Lease
) -> Prefilled:
    """What `worker` answered. Raises InternalError where that makes no sense."""
    first_tokens = tuple(
        FirstToken(messages.sampled_token(first.token), messages.finish_reason(first.finish_reason))
        for first in answer.first_tokens
    )
    going_on = [index for index, one in enumerate(first_tokens) if one.finish_reason is None]
    sensible = (
        [first.choice for first in answer.first_tokens if first.HasField("token")]
        == list(range(choices))
        and answer.HasField("handoff") == bool(going_on)
        and [choice.index for choice in answer.handoff.choices] == going_on
    )
    if not sensible:
        raise errors.InternalError(
            f"worker {worker.worker_id} answered with choices that are neither ended nor handed "
            "off, or both"
        )
    return Prefilled(
        first_tokens=first_tokens,
        handoff=(Handoff(answer.handoff, worker.layout_fingerprint, lease) if going_on else None),
        cached_tokens=answer.stats.cached_tokens,
        prompt_logprobs=tuple(map(messages.sampled_token, answer.prompt_logprobs)),
        parts=PrefillParts(
            waiting_s=seconds(answer.stats.waiting),
            computing_s=seconds(answer.stats.computing),
            publishing_s=seconds(answer.stats.publishing),
            computed_tokens=answer.stats.computed_tokens,
            published_bytes=answer.stats.published_bytes,
        ),
    )


def decode_request(worker: Worker, asked: DecodeCall) -> decode_pb2.DecodeRequest:
    """What `worker` is asked, to go on with a choice."""
    generation = asked.generation
    request = decode_pb2.DecodeRequest(
        request_id=asked.request_id,
        attempt=asked.attempt,
        incarnation=worker.incarnation,
        layout_fingerprint=worker.layout_fingerprint,
        priority=generation.urgency.priority,
    )
    if asked.itl_target_s is not None:
        request.itl_target.CopyFrom(to_duration(asked.itl_target_s))
    if asked.handoff is None:
        prompt = request.prompt
        prompt.prompt_token_ids.extend(generation.prompt_ids)
        prompt.emitted_token_ids.extend(token.token_id for token in asked.emitted)
        prompt.sampling.CopyFrom(
            messages.sampling_message(generation, wants_prompt=asked.wants_prompt)
        )
        prompt.choice = asked.choice
        prompt.tenant_salt = generation.salt
        return request
    handoff = request.handoff
    handoff.CopyFrom(asked.handoff.message)
    handoff.tenant_salt = generation.salt
    handoff.sampling.ClearField("prompt_logprobs")
    del handoff.choices[:]
    state = handoff.choices.add(index=asked.choice)
    state.emitted.extend(
        sampling_pb2.SampledToken(token_id=token.token_id) for token in asked.emitted
    )
    return request


def decode_event(response: decode_pb2.DecodeResponse, worker: Worker) -> DecodeEvent:
    """What `worker` told. Raises InternalError where that makes no sense."""
    match response.WhichOneof("event"):
        case "started":
            return _started(response.started)
        case "prompt":
            return Prompted(tuple(map(messages.sampled_token, response.prompt.prompt_logprobs)))
        case "tokens":
            return Tokens(tuple(map(messages.sampled_token, response.tokens.tokens)))
        case "finished":
            reason = messages.finish_reason(response.finished.finish_reason)
            if reason is not None:
                return Finished(reason)
        case "handed_off":
            return _handed_off(response.handed_off, worker)
    raise errors.InternalError(f"worker {worker.worker_id} streamed an unknown event")


def _started(told: decode_pb2.DecodeStarted) -> Started:
    fetch = FetchParts(seconds(told.fetching), told.fetched_bytes)
    return Started(told.cached_tokens, told.missing_tokens, fetch)


def _handed_off(told: decode_pb2.DecodeHandedOff, worker: Worker) -> HandedOff:
    handoff = told.handoff
    if len(handoff.choices) != 1 or not handoff.lease_id:
        raise errors.InternalError(f"worker {worker.worker_id} handed over something else")
    address = handoff.manifest.transfer_address or worker.transfer_address
    return HandedOff(
        Handoff(
            handoff, worker.layout_fingerprint, Lease(naming.LeaseId(handoff.lease_id), address)
        ),
        emitted=tuple(token.token_id for token in handoff.choices[0].emitted),
        draining=told.reason == decode_pb2.HANDOFF_REASON_DRAINING,
    )
