"""Requests of several choices, with every neighbour faked: each choice's output is its own, and
whatever happens to one of them, everything is given back and no token comes twice."""

import asyncio
import itertools
import random
import time
from contextlib import aclosing

import pytest

from baton import errors
from services.router.deadline import Deadline
from services.router.events import Completed, Delta, FinishReason, PromptShown, SampledToken
from services.router.report import Outcome
from services.router.retry import RetryLimits
from tests.support.router_parts import RouterParts, request

OUTPUTS = ("hello\0", "goodbye\0", "hey\0")
EXPECTED = [(text[:-1], [ord(character) for character in text]) for text in OUTPUTS]
GONE = errors.Unavailable("gone")
RACE = errors.LostRace("full")
THREE = request(n=3)


async def test_each_choice_has_its_own_tokens_text_and_end():
    parts = RouterParts(*OUTPUTS)
    choices, completed = await parts.run_choices(request(n=3, max_tokens=6))
    assert choices == [EXPECTED[0], ("goodby", EXPECTED[1][1][:6]), EXPECTED[2]]
    assert [choice.index for choice in completed.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in completed.choices] == [
        FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP,
    ]  # fmt: skip
    assert [choice.completion_tokens for choice in completed.choices] == [6, 6, 4]
    assert all(choice.decode_worker for choice in completed.choices)
    usage = completed.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (6, 16, 3)
    assert completed.timings.decode_worker == completed.choices[0].decode_worker
    assert (completed.timings.prefill_attempts, completed.timings.decode_attempts) == (1, 1)
    await parts.check_all_given_back()


async def test_one_prefill_and_a_decode_call_of_its_own_for_each_choice():
    parts = RouterParts(*OUTPUTS)
    await parts.run_choices(THREE)
    assert len(parts.legs.prefill_calls) == 1
    calls = parts.legs.calls
    assert sorted(call.choice for call in calls) == [0, 1, 2]
    assert len({call.request_id for call in calls}) == 3
    assert len({call.handoff for call in calls}) == 1
    for call in calls:
        assert [token.token_id for token in call.emitted] == EXPECTED[call.choice][1][:1]
    claimed = {demand.request_id for demand in parts.dispatcher.demands}
    assert claimed == {call.request_id for call in calls}


async def test_choices_are_decoded_at_the_same_time():
    parts = RouterParts(*OUTPUTS)
    parts.legs.gates = {index: asyncio.Event() for index in range(3)}
    task = asyncio.create_task(parts.run_choices(THREE))
    await until(lambda: parts.legs.open_calls == 3)
    for gate in parts.legs.gates.values():
        gate.set()
    assert (await task)[0] == EXPECTED


async def test_stop_strings_are_each_choices_own():
    parts = RouterParts(*OUTPUTS)
    choices, completed = await parts.run_choices(request(n=3, stop=["y"]))
    assert [text for text, _ in choices] == ["hello", "goodb", "he"]
    assert [choice.stop_string for choice in completed.choices] == [None, "y", "y"]
    await parts.check_all_given_back()


async def test_first_tokens_that_end_some_or_all_choices():
    parts = RouterParts("\0", "ab\0", "\0")
    choices, completed = await parts.run_choices(THREE)
    assert choices == [("", [0]), ("ab", [97, 98, 0]), ("", [0])]
    assert [bool(choice.decode_worker) for choice in completed.choices] == [False, True, False]
    assert [call.choice for call in parts.legs.calls] == [1]
    await parts.check_all_given_back()
    parts = RouterParts("\0", "\0", "\0")
    choices, completed = await parts.run_choices(THREE)
    assert choices == [("", [0])] * 3
    assert (parts.legs.calls, completed.usage.completion_tokens) == ([], 3)
    await parts.check_all_given_back()


async def test_a_choice_that_ends_gives_its_room_back_while_others_go_on():
    parts = RouterParts(*OUTPUTS)
    parts.legs.gates = {1: asyncio.Event()}
    async with aclosing(parts.events(THREE)) as events:
        seen = [await anext(events) for _ in range(6 + 1 + 4)]
        assert {event.choice for event in seen} == {0, 1, 2}
        await until(lambda: len(parts.dispatcher.held) == 1)
        await until(lambda: parts.legs.open_calls == 1)
        [held] = parts.dispatcher.held
        assert held.endswith(".1")
        parts.legs.gates[1].set()
        rest = [event async for event in events]
    assert "".join(event.text for event in rest[:-1]) == "oodbye"
    await parts.check_all_given_back()


async def test_the_lease_is_held_until_the_last_choice_has_started():
    parts = RouterParts(*OUTPUTS)
    parts.dispatcher.full = True
    task = asyncio.create_task(parts.run_choices(THREE))
    await until(lambda: parts.legs.open_calls == 0 and parts.legs.calls)
    await until(lambda: not parts.dispatcher.held)
    assert len(parts.leases) == 1, "two choices wait for room"
    task.cancel()
    await asyncio.wait({task})
    await parts.check_all_given_back()


async def test_room_for_further_choices_is_waited_for_so_long():
    parts = RouterParts(*OUTPUTS, limits=RetryLimits(room_s=0.1))
    parts.dispatcher.full = True
    parts.legs.gates = {0: asyncio.Event()}
    task = asyncio.create_task(parts.run_choices(THREE))
    await asyncio.sleep(0.3)
    assert not task.done(), "choice 0 is at work, and gives room when it ends"
    parts.legs.gates[0].set()
    with pytest.raises(errors.Exhausted, match="room for choice") as raised:
        async with asyncio.timeout(5):
            await task
    assert raised.value.retry_after > 0
    await parts.check_all_given_back()


async def test_without_prefill_workers_the_first_choice_goes_ahead():
    parts = RouterParts(*OUTPUTS, prefill=0)
    parts.legs.gates = {0: asyncio.Event()}
    task = asyncio.create_task(parts.run_choices(THREE))
    await until(lambda: parts.legs.open_calls == 1)
    await asyncio.sleep(0.02)
    assert [call.choice for call in parts.legs.calls] == [0], "the others wait for its prefix"
    parts.legs.gates[0].set()
    choices, completed = await task
    assert choices == EXPECTED
    assert [call.handoff for call in parts.legs.calls] == [None] * 3
    assert parts.dispatcher.near == ["decode-0"] * 2, "where the prompt is cached"
    assert completed.usage.cached_tokens == 4
    await parts.check_all_given_back()


async def test_a_first_choice_that_fails_before_its_first_token_is_waited_for():
    parts = RouterParts(*OUTPUTS, prefill=0)
    parts.legs.choice_faults = {0: [(-1, GONE), (0, GONE)]}
    choices, completed = await parts.run_choices(THREE)
    assert choices == EXPECTED
    assert [call.choice for call in parts.legs.calls[:3]] == [0, 0, 0]
    assert completed.timings.decode_attempts == 3
    await parts.check_all_given_back()


@pytest.mark.parametrize("prefill", [0, 2])
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [GONE, RACE, None])
async def test_a_choices_failure_at_every_step_touches_no_other(failing, error, prefill):
    for sent in range(-1 if error else 0, len(OUTPUTS[failing])):
        parts = RouterParts(*OUTPUTS, prefill=prefill)
        parts.legs.choice_faults = {failing: [(sent, error)]}
        choices, completed = await parts.run_choices(THREE)
        assert choices == EXPECTED
        assert completed.usage.completion_tokens == sum(map(len, OUTPUTS))
        calls = [call.choice for call in parts.legs.calls]
        assert all(calls.count(index) == 1 for index in range(3) if index != failing)
        attempts = [call.attempt for call in parts.legs.calls if call.choice == failing]
        assert attempts == list(range(len(attempts)))
        await parts.check_all_given_back()


async def test_choices_that_all_fail_at_every_combination_of_steps():
    for steps in itertools.product((-1, 0, 2), repeat=3):
        parts = RouterParts(*OUTPUTS)
        parts.legs.choice_faults = {index: [(sent, GONE)] for index, sent in enumerate(steps)}
        choices, _ = await parts.run_choices(THREE)
        assert choices == EXPECTED
        await parts.check_all_given_back()


async def test_any_mix_of_failures_and_steps_gives_every_token_once():
    for seed in range(200):
        rng = random.Random(seed)
        parts = RouterParts(*OUTPUTS, step=rng.randint(1, 3), prefill=rng.choice((0, 2)))
        parts.legs.choice_faults = {
            index: [
                (rng.randint(-1, 5), rng.choice((GONE, RACE))) for _ in range(rng.randint(0, 4))
            ]
            for index in range(3)
        }
        choices, completed = await parts.run_choices(THREE)
        assert choices == EXPECTED, seed
        assert completed.usage.completion_tokens == sum(map(len, OUTPUTS))
        await parts.check_all_given_back()


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_a_choice_that_fails_for_good_ends_the_request(failing):
    parts = RouterParts(*OUTPUTS, limits=RetryLimits(decode_attempts=2))
    parts.legs.choice_faults = {failing: [(0, GONE), (0, GONE)]}
    with pytest.raises(errors.Unavailable):
        await parts.run_choices(THREE)
    assert parts.register.counters.count(Outcome.FAILED) == 1
    await parts.check_all_given_back()
    parts = RouterParts(*OUTPUTS)
    parts.legs.choice_faults = {failing: [(1, errors.InternalError("a bug"))]}
    with pytest.raises(errors.InternalError, match="a bug"):
        await parts.run_choices(THREE)
    await parts.check_all_given_back()


def scenario(stop_at, prefill):
    """Failures in both legs, so that every await that there is comes up."""
    parts = RouterParts(*OUTPUTS, stop_at=stop_at, prefill=prefill)
    parts.legs.prefill_faults = [GONE]
    parts.legs.choice_faults = {1: [(2, RACE)]}
    return parts


@pytest.mark.parametrize("prefill", [0, 2])
async def test_cancel_in_every_window(prefill):
    parts = scenario(None, prefill)
    await parts.run_choices(THREE)
    await parts.check_all_given_back()
    names = parts.windows.names
    assert {"turn", "release", "pause", "decode", "token", "claim_decode", "finish"} <= set(names)
    for stop_at, name in enumerate(names):
        if name == "background release":
            continue  # nothing there hears of a cancel
        parts = scenario(stop_at, prefill)
        task = asyncio.create_task(parts.run_choices(THREE))
        async with asyncio.timeout(5):
            await parts.windows.reached.wait()
        await asyncio.sleep(0.005)  # the others go as far as they can
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await parts.check_all_given_back()
        assert time.monotonic() - started < 3.0, name
        assert parts.register.counters.count(Outcome.CANCELLED) == 1


@pytest.mark.parametrize("prefill", [0, 2])
async def test_client_that_leaves_after_any_event(prefill):
    for seen in range(sum(map(len, OUTPUTS)) + 1):
        parts = scenario(None, prefill)
        async with asyncio.timeout(5), aclosing(parts.events(THREE)) as events:
            for _ in range(seen):
                await anext(events)
        await parts.check_all_given_back()


@pytest.mark.parametrize("window", ["claim_decode", "pause"])
async def test_deadline_of_one_choice_is_the_requests(window):
    parts = scenario(None, 2)
    await parts.run_choices(THREE)
    stop_at = len(parts.windows.names) - 1 - parts.windows.names[::-1].index(window)
    parts = scenario(stop_at, 2)
    with pytest.raises(errors.DeadlineExceeded):
        await parts.run_choices(THREE, Deadline.after(0.1))
    await parts.check_all_given_back()


@pytest.mark.parametrize("prefill", [0, 2])
@pytest.mark.parametrize("n", [1, 3])
async def test_the_prompt_comes_once_before_the_first_delta(n, prefill):
    parts = RouterParts(*OUTPUTS, prefill=prefill)
    parts.legs.decode_faults = [(0, GONE)]
    fields = request("prompt", n=n, echo=True, prompt_logprobs=0)
    events = [event async for event in parts.events(fields)]
    first, *others = (SampledToken(ord(character), -0.25) for character in "prompt")
    assert events[0] == PromptShown("prompt", (SampledToken(first.token_id), *others), True)
    assert all(isinstance(event, Delta) for event in events[1:-1])
    assert isinstance(events[-1], Completed)
    assert sum(call.wants_prompt for call in parts.legs.calls) == (prefill == 0)
    await parts.check_all_given_back()


async def test_echo_and_prompt_log_probabilities_each_alone():
    [prompt, *_] = [event async for event in RouterParts().events(request("ab", echo=True))]
    assert prompt == PromptShown("ab", (SampledToken(97), SampledToken(98)))
    fields = request("ab", prompt_logprobs=3)
    [prompt, *_] = [event async for event in RouterParts().events(fields)]
    assert prompt == PromptShown("", (SampledToken(97), SampledToken(98, -0.25)), True)
    [prompt, *_] = [event async for event in RouterParts().events(request("a", prompt_logprobs=3))]
    assert prompt == PromptShown("", (SampledToken(97),), True)


async def test_prompt_log_probabilities_that_no_worker_told():
    parts = RouterParts()
    parts.legs._prompt = lambda generation: ()
    with pytest.raises(errors.InternalError, match="prompt's log probabilities"):
        await parts.run(request("ab", prompt_logprobs=0))
    await parts.check_all_given_back()


async def until(condition):
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0.002)
