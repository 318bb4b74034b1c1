"""Calls to workers over real gRPC, with scripted servers on the other side."""

import asyncio
import itertools

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from baton import errors
from baton.naming import LeaseId, RequestId, tenant_salt
from baton.policy.fleet import Role
from baton.policy.score import Urgency
from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    sampling_pb2,
)
from services.common import rpc
from services.common.background import Background
from services.router.calls import (
    DecodeCall,
    Finished,
    FirstToken,
    HandedOff,
    Handoff,
    Prefilled,
    PrefillParts,
    Prompted,
    Started,
    Tokens,
)
from services.router.channels import Channels
from services.router.deadline import Deadline
from services.router.events import FinishReason, SampledToken
from services.router.leases import Lease
from services.router.legs import Legs
from services.router.validation import Generation, Sampling
from tests.support.router_parts import worker

STOP = sampling_pb2.FINISH_REASON_STOP
SAMPLING = Sampling(
    0.5, 3, 0.25, 0.125, 9, 1, (5, 6), True, 2,
    repetition_penalty=1.5, presence_penalty=-0.5, frequency_penalty=0.25,
    logit_bias=((4, -2.5),), bad_sequences=((7,), (8, 9)), prompt_logprobs=0,
)  # fmt: skip
URGENCY = Urgency(priority=-3, tenant="t")
GENERATION = Generation(RequestId("r"), (1, 2, 3), SAMPLING, 10, (), choices=2, urgency=URGENCY)
LEASE = Lease(LeaseId("lease-1"), "transfer:1")
WIRE_SAMPLING = sampling_pb2.SamplingParams(
    temperature=0.5,
    top_k=3,
    top_p=0.25,
    min_p=0.125,
    seed=9,
    max_tokens=10,
    min_tokens=1,
    stop_token_ids=[5, 6],
    ignore_eos=True,
    logprobs=2,
    repetition_penalty=1.5,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    logit_bias={4: -2.5},
    bad_sequences=[
        sampling_pb2.TokenSequence(token_ids=[7]),
        sampling_pb2.TokenSequence(token_ids=[8, 9]),
    ],
    prompt_logprobs=0,
)


def token(token_id):
    return sampling_pb2.SampledToken(token_id=token_id)


def first_token(choice, sampled, reason=sampling_pb2.FINISH_REASON_UNSPECIFIED):
    return prefill_pb2.FirstToken(choice=choice, token=sampled, finish_reason=reason)


BOTH_GO_ON = [first_token(index, token(7)) for index in (0, 1)]
BOTH_ENDED = prefill_pb2.PrefillResponse(
    first_tokens=[first_token(index, token(0), STOP) for index in (0, 1)]
)


def started(cached=3):
    return decode_pb2.DecodeResponse(
        started=decode_pb2.DecodeStarted(cached_tokens=cached, missing_tokens=1)
    )


def tokens(*ids):
    step = decode_pb2.DecodeTokens(tokens=[token(i) for i in ids])
    return decode_pb2.DecodeResponse(tokens=step)


def finished(reason=STOP):
    return decode_pb2.DecodeResponse(finished=decode_pb2.DecodeFinished(finish_reason=reason))


class Workers(prefill_pb2_grpc.PrefillServiceServicer, decode_pb2_grpc.DecodeServiceServicer):
    """A worker of both kinds that does as `script` says: messages, pauses in seconds, errors."""

    def __init__(self):
        self.script = []
        self.requests = []
        self.remaining = None
        self.ended = asyncio.Event()
        self.outcome = None

    async def Prefill(self, request, context):
        return await anext(self._play(request, context))

    async def Decode(self, request, context):
        async for answer in self._play(request, context):
            yield answer

    async def _play(self, request, context):
        self.requests.append(request)
        self.remaining = context.time_remaining()
        self.outcome = "cancelled"
        try:
            for act in self.script:
                if isinstance(act, Exception):
                    raise act
                if isinstance(act, float):
                    await asyncio.sleep(act)
                elif callable(act):
                    await act(context)
                else:
                    yield act
            self.outcome = "finished"
        finally:
            self.ended.set()


@pytest.fixture
async def workers():
    return Workers()


@pytest.fixture
async def server(workers):
    running = await rpc.serve(
        "127.0.0.1:0",
        [
            lambda s: prefill_pb2_grpc.add_PrefillServiceServicer_to_server(workers, s),
            lambda s: decode_pb2_grpc.add_DecodeServiceServicer_to_server(workers, s),
        ],
        [],
    )
    yield running
    await running.stop(0)


@pytest.fixture
async def channels():
    channels = Channels(Background())
    yield channels
    await channels.close()


@pytest.fixture
async def gone():
    """Set once the fleet knows that the worker is gone."""
    return asyncio.Event()


@pytest.fixture
def legs(channels, gone):
    return Legs(channels, 5.0, 0.2, lambda _worker: gone)


@pytest.fixture
def prefill(legs, server):
    async def call(deadline=None, address=None):
        chosen = worker(Role.PREFILL, address=address or server.address)
        return await legs.prefill(chosen, 4, GENERATION, LEASE, deadline or Deadline.after(5))

    return call


@pytest.fixture
def decode(legs, server):
    def call(handoff=None, emitted=(), deadline=None, address=None, wants_prompt=False):
        chosen = worker(Role.DECODE, address=address or server.address)
        asked = DecodeCall(
            RequestId("r.1"), 4, 1, GENERATION, tuple(emitted), handoff, wants_prompt, 0.25
        )
        return legs.decode(chosen, asked, deadline or Deadline.after(5))

    return call


async def test_prefill_says_everything_and_hears_everything(prefill, workers):
    handoff = kv_pb2.Handoff(request_id="r", lease_id="lease-1")
    handoff.choices.add(index=1)
    first = sampling_pb2.SampledToken(
        token_id=7,
        logprob=-0.5,
        top_logprobs=[sampling_pb2.TokenLogprob(token_id=7, logprob=-0.5)],
    )
    workers.script = [
        prefill_pb2.PrefillResponse(
            first_tokens=[first_token(0, first, STOP), first_token(1, token(8))],
            handoff=handoff,
            stats=prefill_pb2.PrefillStats(
                cached_tokens=2, computed_tokens=1, computing=Duration(nanos=250_000_000)
            ),
            prompt_logprobs=[sampling_pb2.SampledToken(token_id=2, logprob=-1.5)],
        )
    ]
    assert await prefill() == Prefilled(
        first_tokens=(
            FirstToken(SampledToken(7, -0.5, ((7, -0.5),)), FinishReason.STOP),
            FirstToken(SampledToken(8), None),
        ),
        handoff=Handoff(handoff, "layout-a", LEASE),
        cached_tokens=2,
        prompt_logprobs=(SampledToken(2, -1.5),),
        parts=PrefillParts(computing_s=0.25, computed_tokens=1),
    )
    assert workers.requests == [
        prefill_pb2.PrefillRequest(
            request_id="r",
            attempt=4,
            incarnation="1",
            layout_fingerprint="layout-a",
            prompt_token_ids=[1, 2, 3],
            sampling=WIRE_SAMPLING,
            lease_id="lease-1",
            tenant_salt=tenant_salt("t"),
            choices=2,
        )
    ]


async def test_prefill_that_ends_every_choice_has_no_handoff(prefill, workers):
    workers.script = [BOTH_ENDED]
    ended = FirstToken(SampledToken(0), FinishReason.STOP)
    assert await prefill() == Prefilled((ended, ended), None, 0, ())


def handing_off(*indices):
    states = [kv_pb2.ChoiceState(index=index) for index in indices]
    return kv_pb2.Handoff(choices=states)


@pytest.mark.parametrize(
    "answer",
    [
        prefill_pb2.PrefillResponse(),
        prefill_pb2.PrefillResponse(first_tokens=BOTH_GO_ON),
        prefill_pb2.PrefillResponse(first_tokens=BOTH_GO_ON, handoff=handing_off(0)),
        prefill_pb2.PrefillResponse(first_tokens=BOTH_GO_ON, handoff=handing_off(0, 2)),
        prefill_pb2.PrefillResponse(first_tokens=BOTH_GO_ON[:1], handoff=handing_off(0)),
        prefill_pb2.PrefillResponse(first_tokens=BOTH_GO_ON[::-1], handoff=handing_off(0, 1)),
        prefill_pb2.PrefillResponse(first_tokens=BOTH_ENDED.first_tokens, handoff=kv_pb2.Handoff()),
        prefill_pb2.PrefillResponse(
            first_tokens=[prefill_pb2.FirstToken(), BOTH_GO_ON[1]], handoff=handing_off(0, 1)
        ),
        prefill_pb2.PrefillResponse(handoff=handing_off(0, 1)),
    ],
)
async def test_prefill_answer_that_makes_no_sense(prefill, workers, answer):
    workers.script = [answer]
    with pytest.raises(errors.InternalError, match="prefill-0"):
        await prefill()


async def test_decode_of_a_handoff_carries_the_emitted_tokens(decode, workers):
    handoff = kv_pb2.Handoff(
        request_id="r", lease_id="lease-1", manifest=kv_pb2.Manifest(length_tokens=3)
    )
    handoff.sampling.CopyFrom(WIRE_SAMPLING)
    handoff.choices.add(index=0, emitted=[token(6)])
    handoff.choices.add(index=1, emitted=[token(7)])
    workers.script = [started(), tokens(9, 10), finished()]
    emitted = [SampledToken(7), SampledToken(8)]
    events = [event async for event in decode(Handoff(handoff, "layout-a", LEASE), emitted)]
    assert events == [
        Started(3),
        Tokens((SampledToken(9), SampledToken(10))),
        Finished(FinishReason.STOP),
    ]
    [request] = workers.requests
    assert (request.attempt, request.incarnation) == (4, "1")
    assert request.request_id == "r.1"
    [state] = request.handoff.choices
    assert (state.index, [one.token_id for one in state.emitted]) == (1, [7, 8])
    assert request.handoff.manifest == handoff.manifest
    assert request.handoff.tenant_salt == tenant_salt("t")
    assert (request.priority, request.itl_target.ToMilliseconds()) == (-3, 250)
    assert not request.handoff.sampling.HasField("prompt_logprobs")
    assert len(handoff.choices[1].emitted) == 1, "the handoff may be used again"
    assert workers.outcome == "finished"


@pytest.mark.parametrize("wants_prompt", [False, True])
async def test_decode_of_a_prompt(decode, workers, wants_prompt):
    told = decode_pb2.DecodePrompt(
        prompt_logprobs=[sampling_pb2.SampledToken(token_id=2, logprob=-0.5)]
    )
    workers.script = [
        started(),
        decode_pb2.DecodeResponse(prompt=told),
        finished(sampling_pb2.FINISH_REASON_LENGTH),
    ]
    emitted = [SampledToken(7), SampledToken(8)]
    events = [event async for event in decode(None, emitted, wants_prompt=wants_prompt)]
    assert events[1:] == [Prompted((SampledToken(2, -0.5),)), Finished(FinishReason.LENGTH)]
    sampling = sampling_pb2.SamplingParams()
    sampling.CopyFrom(WIRE_SAMPLING)
    if not wants_prompt:
        sampling.ClearField("prompt_logprobs")
    prompt = workers.requests[0].prompt
    assert prompt == decode_pb2.Prompt(
        prompt_token_ids=[1, 2, 3],
        emitted_token_ids=[7, 8],
        sampling=sampling,
        choice=1,
        tenant_salt=tenant_salt("t"),
    )
    assert workers.requests[0].priority == -3


@pytest.mark.parametrize("script", [[], [started()], [started(), tokens(1)]])
async def test_stream_that_ends_without_finishing_is_unavailable(decode, workers, script):
    workers.script = script
    with pytest.raises(errors.Unavailable, match="decode-0"):
        async for _ in decode():
            pass


def handed_off(*states, lease_id="lease-9", address="transfer:2", reason=0):
    handoff = kv_pb2.Handoff(
        lease_id=lease_id, manifest=kv_pb2.Manifest(transfer_address=address), choices=states
    )
    told = decode_pb2.DecodeHandedOff(handoff=handoff, reason=reason)
    return decode_pb2.DecodeResponse(handed_off=told)


@pytest.mark.parametrize(
    ("reason", "draining"),
    [(decode_pb2.HANDOFF_REASON_DRAINING, True), (decode_pb2.HANDOFF_REASON_PREEMPTED, False)],
)
@pytest.mark.parametrize("address", ["transfer:2", ""])
async def test_a_sequence_that_is_handed_over_ends_the_stream(
    decode, workers, reason, draining, address
):
    state = kv_pb2.ChoiceState(index=1, emitted=[token(7), token(8)])
    script = [started(), tokens(8), handed_off(state, address=address, reason=reason)]
    workers.script = [*script, 0.05]
    *_, last = [event async for event in decode(None, [SampledToken(7)])]
    told = script[-1].handed_off.handoff
    lease = Lease(LeaseId("lease-9"), address or "transfer-of-decode-0")
    assert last == HandedOff(Handoff(told, "layout-a", lease), (7, 8), draining)
    await workers.ended.wait()
    assert workers.outcome == "finished"


async def test_a_handoff_is_told_before_its_call_has_closed(decode, workers):
    """Its lease is the router's: nobody would end it if the client went between the two."""
    workers.script = [started(), handed_off(kv_pb2.ChoiceState(index=1)), 0.1]
    events = decode()
    while not isinstance(await anext(events), HandedOff):
        pass
    assert not workers.ended.is_set()
    assert [event async for event in events] == []
    await workers.ended.wait()
    assert workers.outcome == "finished"


async def test_a_handoff_before_the_first_token_is_passed_on(decode, workers):
    """A worker let it go before its first token: no token is emitted, KV may be there."""
    told = handed_off(kv_pb2.ChoiceState(index=1)).handed_off.handoff
    workers.script = [started(), finished()]
    async for _ in decode(Handoff(told, "layout-a", LEASE)):
        pass
    [state] = workers.requests[0].handoff.choices
    assert (state.index, list(state.emitted)) == (1, [])


@pytest.mark.parametrize("answer", [handed_off(), handed_off(kv_pb2.ChoiceState(), lease_id="")])
async def test_a_handoff_that_makes_no_sense(decode, workers, answer):
    workers.script = [answer]
    with pytest.raises(errors.InternalError, match="decode-0"):
        await anext(decode())


async def test_a_worker_that_is_gone_is_waited_for_no_longer(prefill, decode, workers, gone):
    workers.script = [30.0]
    loop = asyncio.get_running_loop()
    for call in (prefill(), anext(decode())):
        gone.clear()
        workers.ended.clear()
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0.1)
        assert not task.done()
        since = loop.time()
        gone.set()
        with pytest.raises(errors.Unavailable, match="is gone"):
            await task
        assert loop.time() - since < 10.0
        async with asyncio.timeout(2):
            await workers.ended.wait()
        assert workers.outcome == "cancelled"


async def test_a_worker_that_went_between_two_reads(decode, workers, gone):
    workers.script = [started(), tokens(1), finished()]
    events = decode()
    await anext(events)
    gone.set()
    with pytest.raises(errors.Unavailable, match="is gone"):
        await anext(events)


async def test_unknown_event_is_an_internal_error(decode, workers):
    workers.script = [decode_pb2.DecodeResponse()]
    with pytest.raises(errors.InternalError):
        await anext(decode())


async def test_silent_decode_worker_is_unavailable(decode, workers):
    workers.script = [started(), tokens(1), 30.0]
    events = decode()
    with pytest.raises(errors.Unavailable, match=r"silent for 0\.2 s"):
        async for _ in events:
            pass
    async with asyncio.timeout(2):
        await workers.ended.wait()
    assert workers.outcome == "cancelled"


async def test_worker_that_finished_may_close_in_peace(decode, workers):
    workers.script = [started(), finished(), 0.1]
    assert len([event async for event in decode()]) == 2
    await workers.ended.wait()
    assert workers.outcome == "finished"


async def test_worker_that_finished_and_hangs_holds_nobody_up(decode, workers):
    workers.script = [started(), finished(), 30.0]
    async with asyncio.timeout(3):
        assert len([event async for event in decode()]) == 2
        await workers.ended.wait()


async def test_patience_is_longer_before_the_first_token(decode, workers):
    workers.script = [0.3, started(), 0.3, tokens(1), finished()]
    assert len([event async for event in decode()]) == 3


async def test_slow_reader_is_not_a_silent_worker(decode, workers):
    workers.script = [started(), tokens(1), tokens(2), finished()]
    seen = []
    async for event in decode():
        await asyncio.sleep(0.25)
        seen.append(event)
    assert len(seen) == 4


OWN = [
    errors.InvalidRequest("prompt_token_ids", "too long"),
    errors.LayoutMismatch("a is not b"),
    errors.LostRace("no room"),
    errors.Unavailable("draining"),
    errors.InternalError("a bug"),
    errors.NotFound("what?"),
    errors.Exhausted("full", retry_after=2.0),
]


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
async def test_workers_own_errors_come_through(prefill, decode, workers, error):
    workers.script = [error]
    for call in (prefill(), anext(decode())):
        with pytest.raises(type(error)) as raised:
            await call
        assert type(raised.value) is type(error)
        assert raised.value.message == error.message
        assert raised.value.field == error.field
        assert raised.value.retry_after == error.retry_after


BROKEN = ["INTERNAL", "UNKNOWN", "CANCELLED", "UNIMPLEMENTED", "UNAVAILABLE"]


@pytest.mark.parametrize("code", BROKEN)
async def test_bare_statuses_of_a_broken_transport_are_unavailable(prefill, decode, workers, code):
    async def abort(context):
        await context.abort(grpc.StatusCode[code], "Received RST_STREAM")

    workers.script = [abort]
    for call in (prefill(), anext(decode())):
        with pytest.raises(errors.Unavailable):
            await call


async def test_nobody_there_is_unavailable_soon(prefill, decode, server):
    await server.stop(0)
    async with asyncio.timeout(3):
        for call in (prefill(), anext(decode())):
            with pytest.raises(errors.Unavailable):
                await call


async def test_server_that_stops_in_mid_stream_is_unavailable(decode, workers, server):
    workers.script = [started(), tokens(1), 30.0]
    events = decode()
    await anext(events)
    await anext(events)
    stop = asyncio.create_task(server.stop(0))
    with pytest.raises(errors.Unavailable):
        await anext(events)
    await stop


async def test_deadline_is_passed_on_and_told_apart(prefill, decode, workers, legs):
    workers.script = [30.0]
    for call in (prefill(Deadline.after(0.2)), anext(decode(deadline=Deadline.after(0.2)))):
        with pytest.raises(errors.DeadlineExceeded):
            await call
        assert workers.remaining <= 0.21
    legs._prefill_timeout_s = 0.1
    with pytest.raises(errors.Unavailable, match="too long"):
        await prefill()


@pytest.mark.parametrize("when", ["first", "later"])
async def test_leaving_ends_the_call(decode, workers, when):
    workers.script = [started(), *itertools.repeat(tokens(1), 10), 30.0]
    events = decode()
    for _ in range({"first": 1, "later": 5}[when]):
        await anext(events)
    await events.aclose()
    async with asyncio.timeout(2):
        await workers.ended.wait()
    assert workers.outcome == "cancelled"


async def test_cancelled_caller_ends_the_call(prefill, decode, workers):
    workers.script = [30.0]
    for call in (prefill(), anext(decode())):
        workers.ended.clear()
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(2):
            await workers.ended.wait()
        assert workers.outcome == "cancelled"
