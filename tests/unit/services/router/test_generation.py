"""One request's life with every neighbour faked: what clients see, and what is given back."""

import asyncio
import itertools
import time

import pytest

from baton import errors
from baton.naming import tenant_salt
from baton.policy.score import Urgency
from services.router.deadline import Deadline
from services.router.events import Admitted, Completed, Delta, FinishReason
from services.router.report import Outcome
from services.router.retry import RetryLimits
from tests.support.router_parts import RouterParts, request

OUTPUT = "hello\0"
IDS = [ord(character) for character in OUTPUT]
GONE = errors.Unavailable("gone")
RACE = errors.LostRace("full")


async def test_first_token_comes_from_prefill_and_the_rest_from_decode():
    parts = RouterParts()
    text, ids, completed = await parts.run(request(request_id="mine", seed=7))
    assert (text, ids) == ("hello", IDS)
    assert completed.choices[0].finish_reason is FinishReason.STOP
    assert completed.choices[0].stop_string is None
    assert (completed.request_id, completed.seed) == ("mine", 7)
    assert completed.usage.prompt_tokens == len("prompt")
    assert completed.usage.completion_tokens == len(IDS)
    assert completed.usage.cached_tokens == 3
    assert completed.timings.prefill_worker == "prefill-0"
    assert completed.timings.decode_worker == "decode-0"
    assert (completed.timings.prefill_attempts, completed.timings.decode_attempts) == (1, 1)
    [(_, attempt, handoff, emitted)] = parts.legs.decode_calls
    assert attempt == 0
    assert handoff is not None
    assert [token.token_id for token in emitted] == IDS[:1]
    await parts.check_all_given_back()


async def test_seed_is_drawn_and_reported_when_absent():
    seeds = {(await RouterParts().run())[2].seed for _ in range(3)}
    assert len(seeds) == 3


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_max_tokens_gives_exactly_as_many(count):
    parts = RouterParts("endless words")
    text, ids, completed = await parts.run(request(max_tokens=count))
    assert text == "endless words"[:count]
    assert len(ids) == count == completed.usage.completion_tokens
    assert completed.choices[0].finish_reason is FinishReason.LENGTH
    assert len(parts.legs.decode_calls) == (count > 1)
    assert completed.timings.decode_worker == ("decode-0" if count > 1 else None)
    await parts.check_all_given_back()


async def test_end_token_first_means_no_decode_at_all():
    parts = RouterParts("\0")
    text, ids, completed = await parts.run()
    assert (text, ids) == ("", [0])
    assert completed.choices[0].finish_reason is FinishReason.STOP
    assert completed.usage.completion_tokens == 1
    assert completed.timings.decode_worker is None
    assert completed.timings.decode_attempts == 0
    assert completed.timings.handoff_gap is None
    assert parts.legs.decode_calls == []
    await parts.check_all_given_back()


async def test_stop_token_is_counted_and_has_no_text():
    parts = RouterParts("abc")
    text, ids, completed = await parts.run(request(stop_token_ids=(ord("b"),)))
    assert (text, ids) == ("a", [97, 98])
    assert completed.usage.completion_tokens == 2
    assert completed.choices[0].finish_reason is FinishReason.STOP
    assert completed.choices[0].stop_string is None


async def test_log_probabilities_come_with_every_token():
    parts = RouterParts("ab\0")
    tokens = []
    async for event in parts.events(request(logprobs=1)):
        if isinstance(event, Delta):
            tokens += event.tokens
    assert [token.logprob for token in tokens] == [-0.5, -1.5, -2.5]
    assert all(token.top for token in tokens)


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [("h", "", 1), ("he", "", 2), ("el", "h", 3), ("lo", "hel", 5), ("x", "hello", 6)],
)
async def test_stop_string_across_tokens_and_the_handoff(stop, text, count, step):
    parts = RouterParts(step=step)
    got, ids, completed = await parts.run(request(stop=["nothing", stop]))
    assert got == text
    assert completed.choices[0].stop_string == (stop if stop != "x" else None)
    assert completed.choices[0].finish_reason is FinishReason.STOP
    assert completed.usage.completion_tokens == len(ids)
    assert ids == IDS[: len(ids)]
    assert count <= len(ids) < count + step
    assert len(parts.legs.decode_calls) == (count > 1)
    await parts.check_all_given_back()


async def test_tokens_of_held_back_text_are_sent_at_once_and_the_last_has_all_text():
    parts = RouterParts("ab\0")
    deltas = [event async for event in parts.events(request(stop=["abc"]))][:-1]
    assert [(d.text, len(d.tokens)) for d in deltas] == [("", 1), ("", 1), ("ab", 1)]
    parts = RouterParts("ab~")
    deltas = [event async for event in parts.events(request(max_tokens=3))][:-1]
    assert [(d.text, len(d.tokens)) for d in deltas] == [("a", 1), ("b", 1), ("~", 1)]


async def test_text_that_is_held_back_when_a_worker_ends_the_output_by_itself():
    parts = RouterParts("ab")
    parts.legs._end = lambda _output, _generation, done: FinishReason.STOP if done == 2 else None
    deltas = [event async for event in parts.events(request(stop=["abc"]))][:-1]
    assert [(d.text, len(d.tokens)) for d in deltas] == [("", 1), ("", 1), ("ab", 0)]


@pytest.mark.parametrize(
    ("min_tokens", "stop", "text"),
    [
        (0, "ab", ""),
        (1, "ab", ""),
        (2, "ab", "ab"),
        (3, "ab", "ab"),
        (4, "ab", "ababc"),
        (2, "ba", "a"),
        (3, "ba", "ababc"),
        (4, "bc", "aba"),
        (5, "bc", "ababc"),
    ],
)
async def test_stop_strings_hold_from_min_tokens_on(min_tokens, stop, text):
    """In `ababc`, `ab` is complete at the second and fourth token, `ba` at the third."""
    parts = RouterParts("ababc\0")
    got, _, completed = await parts.run(request(stop=[stop], min_tokens=min_tokens))
    assert got == text
    assert completed.choices[0].stop_string == (None if text == "ababc" else stop)


async def test_timings_add_up():
    parts = RouterParts()
    _, _, completed = await parts.run()
    timings = completed.timings
    assert timings.queue + timings.prefill == timings.time_to_first_token
    assert min(timings.queue, timings.prefill, timings.handoff_gap) >= 0
    assert timings.time_to_first_token + timings.handoff_gap <= timings.total


async def test_without_prefill_workers_the_prompt_goes_to_a_decode_worker():
    parts = RouterParts(prefill=0)
    text, ids, completed = await parts.run()
    assert (text, ids) == ("hello", IDS)
    assert completed.usage.cached_tokens == 4
    assert completed.timings.prefill_attempts == 0
    assert completed.timings.prefill_worker == completed.timings.decode_worker == "decode-0"
    assert completed.timings.handoff_gap is None
    [(_, _, handoff, _)] = parts.legs.decode_calls
    assert handoff is None
    await parts.check_all_given_back()


async def test_a_worker_of_another_layout_gets_the_prompt_instead_of_the_handoff():
    parts = RouterParts(decode_layout="layout-b")
    text, ids, _ = await parts.run()
    assert (text, ids) == ("hello", IDS)
    assert parts.legs.decode_calls[0][2] is None


async def test_cached_tokens_never_exceed_the_prompt():
    parts = RouterParts()
    _, _, completed = await parts.run(request("ab"))
    assert completed.usage.cached_tokens == 2


async def test_lease_ends_as_soon_as_decode_has_started():
    parts = RouterParts()
    events = parts.events()
    await anext(events)
    assert len(parts.leases) == 1
    await anext(events)
    assert len(parts.leases) == 0
    await events.aclose()
    await parts.check_all_given_back()


async def test_prefill_worker_is_free_for_others_while_decode_runs():
    parts = RouterParts()
    events = parts.events()
    await anext(events)
    await parts.background.settled()
    [held] = parts.dispatcher.held.values()
    assert held == {("decode-0", 0)}
    await events.aclose()
    await parts.check_all_given_back()


async def test_lease_is_held_again_while_a_stream_is_resumed():
    parts = RouterParts()
    parts.legs.decode_faults = [(1, GONE)]
    await parts.run()
    names = parts.windows.names
    second_decode = names.index("decode", names.index("decode") + 1)

    parts = RouterParts(stop_at=second_decode)
    parts.legs.decode_faults = [(1, GONE)]
    task = asyncio.create_task(parts.run())
    async with asyncio.timeout(5):
        await parts.windows.reached.wait()
    assert len(parts.leases) == 1
    task.cancel()
    await asyncio.wait({task})
    await parts.check_all_given_back()


@pytest.mark.parametrize("error", [GONE, RACE])
@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_prefill_is_tried_elsewhere(error, failures):
    parts = RouterParts()
    parts.legs.prefill_faults = [error] * failures
    text, ids, completed = await parts.run()
    assert (text, ids) == ("hello", IDS)
    assert completed.timings.prefill_attempts == failures + 1
    assert [attempt for _, attempt, _ in parts.legs.prefill_calls] == list(range(failures + 1))
    assert len({lease for _, _, lease in parts.legs.prefill_calls}) == failures + 1
    assert parts.legs.prefill_calls[1][0] == "prefill-1"
    assert parts.legs.decode_calls[0][1] == failures
    assert parts.register.counters.retried_legs == failures
    assert bool(parts.fleet.failures) == (error is GONE)
    assert len(parts.pauses) == failures
    await parts.check_all_given_back()


REFUSED = -1
FAULTS = [
    (REFUSED, GONE),
    (REFUSED, RACE),
    *itertools.product(range(6), (GONE, RACE, None)),
]


@pytest.mark.parametrize("prefill", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
async def test_decode_failure_at_every_step_is_invisible(fault, prefill):
    parts = RouterParts(prefill=prefill)
    parts.legs.decode_faults = [fault]
    text, ids, completed = await parts.run()
    assert (text, ids) == ("hello", IDS)
    assert completed.usage.completion_tokens == len(IDS)
    assert completed.choices[0].finish_reason is FinishReason.STOP
    await parts.check_all_given_back()


@pytest.mark.parametrize("step", [1, 2])
async def test_repeated_failures_at_every_pair_of_steps(step):
    for first, second in itertools.product(range(6), repeat=2):
        parts = RouterParts(step=step)
        parts.legs.decode_faults = [(first, GONE), (second, RACE)]
        text, ids, _ = await parts.run(request(stop=["o"], max_tokens=5))
        assert text == "hell"
        assert ids == IDS[:5]
        calls = parts.legs.decode_calls
        assert [call[1] for call in calls] == list(range(len(calls)))
        assert len({call[0] for call in calls}) == len(calls)
        assert all(call[2] is calls[0][2] for call in calls)
        await parts.check_all_given_back()


@pytest.mark.parametrize(
    ("output", "fields", "reason"),
    [
        ("hello\0", request(), FinishReason.STOP),
        ("hello", request(max_tokens=5), FinishReason.LENGTH),
        ("hello", request(stop_token_ids=(ord("o"),)), FinishReason.STOP),
    ],
)
async def test_worker_that_dies_after_its_last_token_is_not_missed(output, fields, reason):
    parts = RouterParts(output)
    parts.legs.decode_faults = [(len(output), GONE)]
    _, ids, completed = await parts.run(fields)
    assert ids == [ord(character) for character in output]
    assert completed.choices[0].finish_reason is reason
    assert len(parts.legs.decode_calls) == 1
    await parts.check_all_given_back()


async def test_attempts_are_capped():
    parts = RouterParts(limits=RetryLimits(prefill_attempts=3, decode_attempts=2))
    parts.legs.prefill_faults = [GONE] * 10
    with pytest.raises(errors.Unavailable):
        await parts.run()
    assert len(parts.legs.prefill_calls) == 3
    await parts.check_all_given_back()

    parts = RouterParts(limits=RetryLimits(prefill_attempts=3, decode_attempts=2))
    parts.legs.decode_faults = [(1, RACE)] * 10
    with pytest.raises(errors.Exhausted) as raised:
        await parts.run()
    assert raised.value.retry_after > 0
    assert len(parts.legs.decode_calls) == 2
    assert parts.register.counters.count(Outcome.FAILED) == 1
    await parts.check_all_given_back()


async def test_retries_before_the_first_token_are_budgeted_and_resuming_is_not():
    parts = RouterParts()
    parts.dispatcher.budget = 1
    parts.legs.prefill_faults = [GONE, None]
    parts.legs.decode_faults = [(1, GONE), (1, GONE)]
    _, ids, _ = await parts.run()
    assert ids == IDS
    parts.legs.prefill_faults = [GONE]
    with pytest.raises(errors.Unavailable):
        await parts.run()
    await parts.check_all_given_back()


FINAL = [
    errors.InvalidRequest("prompt_token_ids", "too long"),
    errors.LayoutMismatch("a is not b"),
    errors.InternalError("a bug"),
    errors.DeadlineExceeded("late"),
]


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("sent", [None, -1, 0, 2])
async def test_other_errors_end_the_request_at_once(error, sent):
    parts = RouterParts()
    if sent is None:
        parts.legs.prefill_faults = [error]
    else:
        parts.legs.decode_faults = [(sent, error)]
    with pytest.raises(type(error)) as raised:
        await parts.run()
    assert raised.value is error
    assert len(parts.legs.prefill_calls) == 1
    assert parts.pauses == []
    await parts.check_all_given_back()


@pytest.mark.parametrize("step", [1, 5])
async def test_tokens_past_max_tokens_never_reach_the_client(step):
    parts = RouterParts("hello there", step=step)
    parts.legs._end = lambda output, generation, done: None
    if step == 1:
        assert (await parts.run(request(max_tokens=3)))[0] == "hel"
    else:
        with pytest.raises(errors.InternalError):
            await parts.run(request(max_tokens=3))
    await parts.check_all_given_back()


def scenario(stop_at):
    """Failures in both legs, so that every await that there is comes up."""
    parts = RouterParts(stop_at=stop_at)
    parts.legs.prefill_faults = [GONE]
    parts.legs.decode_faults = [(2, RACE)]
    return parts


async def count_windows():
    parts = scenario(None)
    await parts.run()
    await parts.check_all_given_back()
    return parts.windows.names


async def test_cancel_in_every_window():
    *names, last = await count_windows()
    assert last == "background release", "nothing there hears of a cancel"
    assert {"turn", "prefill", "release", "pause", "decode", "token", "claim_decode", "finish"} <= (
        set(names)
    )
    for stop_at, name in enumerate(names):
        parts = scenario(stop_at)
        task = asyncio.create_task(parts.run())
        async with asyncio.timeout(5):
            await parts.windows.reached.wait()
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await parts.check_all_given_back()
        assert time.monotonic() - started < 3.0, name
        assert parts.register.counters.count(Outcome.CANCELLED) == 1


async def test_client_that_leaves_after_any_event():
    for seen in range(8):
        parts = scenario(None)
        events = parts.events()
        async with asyncio.timeout(5):
            for _ in range(seen):
                await anext(events)
            await events.aclose()
        await parts.check_all_given_back()


async def test_deadline_is_honoured_in_every_window():
    names = await count_windows()
    for stop_at, name in enumerate(names):
        if name not in ("turn", "pause", "claim_decode"):
            continue
        parts = scenario(stop_at)
        with pytest.raises(errors.DeadlineExceeded):
            await parts.run(deadline=Deadline.after(0.05))
        await parts.check_all_given_back()


async def test_deadline_reaches_the_legs():
    parts = RouterParts()
    seen = []
    original = parts.legs.prefill

    async def prefill(worker, attempt, generation, lease_id, deadline, headers):
        seen.append(deadline)
        return await original(worker, attempt, generation, lease_id, deadline)

    parts.legs.prefill = prefill
    deadline = Deadline.after(30)
    await parts.run(deadline=deadline)
    assert seen == [deadline]


async def test_only_so_many_requests_run_at_a_time():
    parts = RouterParts(stop_at=0, most=1)
    first = asyncio.create_task(parts.run())
    await parts.windows.reached.wait()
    with pytest.raises(errors.Exhausted) as raised:
        await parts.run()
    assert raised.value.retry_after > 0
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await parts.check_all_given_back()
    assert (await parts.run())[0] == "hello"


async def test_two_requests_of_one_id_do_not_meet():
    parts = RouterParts()
    fields = request(request_id="same")
    outcomes = await asyncio.gather(parts.run(fields), parts.run(fields))
    assert [outcome[0] for outcome in outcomes] == ["hello", "hello"]
    assert [outcome[2].request_id for outcome in outcomes] == ["same", "same"]
    assert len({demand.request_id for demand in parts.dispatcher.demands}) == 2
    await parts.check_all_given_back()


async def test_longest_request_id_stays_within_the_limit():
    parts = RouterParts()
    _, _, completed = await parts.run(request(request_id="i" * 128))
    assert completed.request_id == "i" * 128
    assert len(parts.dispatcher.demands[0].request_id) == 125


async def test_counters_tell_how_requests_ended():
    parts = RouterParts()
    await parts.run()
    with pytest.raises(errors.InvalidRequest):
        await parts.run(request(""))
    events = parts.events()
    await anext(events)
    await events.aclose()
    counters = parts.register.counters
    assert (
        counters.count(Outcome.COMPLETED),
        counters.count(Outcome.FAILED),
        counters.count(Outcome.CANCELLED),
    ) == (1, 1, 1)


async def test_events_are_the_word_that_it_was_let_in_deltas_and_one_completed():
    fields = request(request_id="mine", seed=7)
    first, *events = [event async for event in RouterParts().all_events(fields)]
    assert first == Admitted("mine", 7, 0.25)
    assert all(isinstance(event, Delta) for event in events[:-1])
    assert isinstance(events[-1], Completed)


async def test_what_it_asks_of_the_scheduler_reaches_the_dispatcher_and_the_workers():
    urgency = {"batch": True, "ttft_target_s": 9.0, "priority": 3, "tenant": "t"}
    parts = RouterParts()
    parts.legs.decode_faults = [(1, GONE)]
    await parts.run(request(urgency=urgency))
    assert parts.dispatcher.turns == [
        (Urgency(ttft_target_s=9.0, priority=3, batch=True, tenant="t"), False)
    ]
    assert parts.dispatcher.priorities == [3]
    before, after = parts.dispatcher.demands
    assert (before.itl_target_s, after.itl_target_s) == (None, 5.0)
    assert (before.emitted_tokens, after.emitted_tokens) == (0, 2)
    call = parts.legs.calls[0]
    assert (call.itl_target_s, call.generation.salt) == (5.0, tenant_salt("t"))


class Hints:
    """Knows that a worker has the prompt."""

    async def cached(self, tokens, salt, /):
        self.asked = (tokens, salt)
        return {"prefill-1": 5}


async def test_hints_of_what_is_cached_come_with_the_demand():
    hints = Hints()
    parts = RouterParts(hints=hints)
    await parts.run(request("ab", urgency={"tenant": "t"}))
    assert hints.asked == ((97, 98), tenant_salt("t"))
    assert parts.dispatcher.demands[0].cached == {"prefill-1": 5}


@pytest.mark.parametrize("reason", ["TARGET_OUT_OF_REACH", "TARGET_MISSED", "QUEUE_FULL"])
async def test_refusals_come_first_and_are_counted(reason):
    parts = RouterParts()
    parts.dispatcher.refusal = errors.Exhausted("no", reason=reason)
    with pytest.raises(errors.Exhausted):
        await anext(parts.all_events())
    counters, refused = parts.register.counters, reason != "QUEUE_FULL"
    assert (counters.count(Outcome.REFUSED), counters.count(Outcome.FAILED)) == (
        refused,
        not refused,
    )
    await parts.check_all_given_back()


async def test_what_was_predicted_is_reported():
    timings = (await RouterParts().run())[2].timings
    assert (timings.predicted_ttft, timings.predicted_itl, timings.migrations) == (0.25, 0.125, 0)


@pytest.mark.parametrize(
    ("placing", "counted"),
    [
        ({}, (1, 1, 0, 0)),
        ({"ttft_target_s": 0.0}, (0, 1, 0, 0)),
        ({"itl_target_s": 0.0}, (1, 0, 0, 0)),
        ({"itl_target_s": None}, (1, 1, 0, 0)),
        ({"local": True}, (1, 1, 1, 0)),
        ({"degraded": True}, (1, 1, 0, 1)),
    ],
)
async def test_completed_requests_are_counted_by_what_was_held(placing, counted):
    parts = RouterParts()
    parts.dispatcher.placing = placing
    await parts.run()
    counters = parts.register.counters
    assert (counters.ttft_held, counters.itl_held, counters.local, counters.degraded) == counted


async def test_the_dispatcher_learns_from_what_came_of_it():
    parts = RouterParts()
    await parts.run()
    assert parts.dispatcher.outputs == [len(IDS)]
    assert len(parts.dispatcher.handoffs) == 1
    for prefill, faults in ((0, []), (2, [(1, GONE)])):
        parts = RouterParts(prefill=prefill)
        parts.legs.decode_faults = faults
        await parts.run()
        assert parts.dispatcher.outputs == [len(IDS)]
        assert parts.dispatcher.handoffs == [], "no handoff, or one with a failure in it"


@pytest.mark.parametrize(
    ("cached", "counted"), [(6, (1, 0)), (1, (1, 0)), (0, (0, 1))], ids=["all", "block", "none"]
)
async def test_whether_a_failed_sequence_had_its_kv_still_is_counted(cached, counted):
    parts = RouterParts()
    parts.legs.cached = cached
    parts.legs.decode_faults = [(1, GONE)]
    await parts.run()
    counters = parts.register.counters
    assert (counters.resumed, counters.recomputed) == counted
    parts = RouterParts()
    await parts.run()
    assert parts.register.counters.resumed + parts.register.counters.recomputed == 0


async def test_more_than_a_block_missing_is_recomputed():
    parts = RouterParts()
    parts.legs.cached = 3
    parts.legs.decode_faults = [(1, GONE)]
    await parts.run(request("p" * 20))
    assert parts.register.counters.recomputed == 1
