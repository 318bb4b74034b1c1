"""Streams that a client goes on with at another router: what came before and what follows are
the uninterrupted stream, wherever it was cut."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton import errors
from services.router.events import Admitted, Completed, Delta, FinishReason
from services.router.report import Outcome
from tests.support.router_parts import RouterParts, request

OUTPUT = "hello\0"
GONE = errors.Unavailable("gone")


async def follow(parts, fields, until=None):
    """(text and tokens of each choice, completed) of the first `until` deltas."""
    async with asyncio.timeout(5):
        return await _follow(parts, fields, until)


async def _follow(parts, fields, until):
    texts, ids = [""] * (fields.choices or 1), [[] for _ in range(fields.choices or 1)]
    events = parts.all_events(fields)
    assert isinstance(await anext(events), Admitted)
    completed = None
    if until != 0:
        async for event in events:
            match event:
                case Delta(text, tokens, choice):
                    texts[choice] += text
                    ids[choice] += [token.token_id for token in tokens]
                    if until is not None and (until := until - 1) == 0:
                        break
                case Completed():
                    completed = event
    await events.aclose()
    await parts.check_all_given_back()
    return texts, ids, completed


def resuming(seed, ids, **fields):
    return request(resume=(seed, ["".join(map(chr, one)) for one in ids]), **fields)


async def test_goes_on_behind_what_the_client_has():
    parts = RouterParts()
    texts, ids, completed = await follow(parts, resuming(7, [[104, 101]], urgency={"priority": 2}))
    assert (texts, ids) == (["llo"], [[108, 108, 111, 0]])
    assert (completed.seed, completed.usage.completion_tokens) == (7, 6)
    assert completed.choices[0].completion_tokens == 6
    assert parts.legs.prefill_calls == []
    [(_, whole)] = parts.dispatcher.turns
    assert whole
    [call] = parts.legs.calls
    assert call.handoff is None
    assert [token.token_id for token in call.emitted] == [104, 101]
    assert parts.dispatcher.demands[0].emitted_tokens == 2
    assert completed.timings.handoff_gap is None


async def test_nothing_received_is_a_new_stream_of_the_same_seed():
    parts = RouterParts()
    texts, _, completed = await follow(parts, resuming(7, [[]]))
    assert (texts, completed.seed) == (["hello"], 7)
    assert parts.dispatcher.turns[0][1] is False
    assert len(parts.legs.prefill_calls) == 1


@pytest.mark.parametrize(
    ("ids", "fields", "reason", "stop"),
    [
        (OUTPUT, {}, FinishReason.STOP, None),
        ("hel", {"max_tokens": 3}, FinishReason.LENGTH, None),
        ("hell", {"stop": ["ll"]}, FinishReason.STOP, "ll"),
        ("hello", {"stop": ["ll"]}, FinishReason.STOP, "ll"),
    ],
)
async def test_a_stream_of_which_only_the_end_was_lost(ids, fields, reason, stop):
    parts = RouterParts()
    texts, got, completed = await follow(
        parts, resuming(7, [[ord(character) for character in ids]], **fields)
    )
    assert (texts, got) == ([""], [[]])
    [choice] = completed.choices
    assert (choice.finish_reason, choice.stop_string) == (reason, stop)
    assert choice.completion_tokens == len(ids)
    assert parts.dispatcher.demands == []
    assert parts.register.counters.count(Outcome.COMPLETED) == 1


async def test_choices_that_ended_stay_ended():
    parts = RouterParts(OUTPUT, "goodbye\0", "hey\0")
    received = [[*map(ord, OUTPUT)], [*map(ord, "go")], []]
    texts, ids, completed = await follow(parts, resuming(7, received, n=3))
    assert texts == ["", "odbye", "hey"]
    assert ids == [[], [*map(ord, "odbye\0")], [*map(ord, "hey\0")]]
    assert [choice.completion_tokens for choice in completed.choices] == [6, 8, 4]
    assert sorted(call.choice for call in parts.legs.calls) == [1, 2]
    assert parts.legs.calls[0].choice == 1, "the first that goes on goes ahead"


async def test_the_prompt_is_not_shown_again():
    parts = RouterParts()
    fields = resuming(7, [[104]], echo=True, prompt_logprobs=0)
    events = [event async for event in parts.events(fields)]
    assert all(isinstance(event, Delta | Completed) for event in events)
    assert not parts.legs.calls[0].wants_prompt


async def test_failures_after_it_went_on_are_not_budgeted():
    parts = RouterParts()
    parts.dispatcher.budget = 0
    parts.legs.decode_faults = [(-1, GONE), (1, GONE), (1, "draining")]
    texts, ids, _ = await follow(parts, resuming(7, [[104]]))
    assert (texts, ids) == (["ello"], [[*map(ord, "ello\0")]])


@settings(max_examples=150, deadline=None)
@given(
    outputs=st.lists(st.text("ab~", max_size=9), min_size=1, max_size=3),
    stop=st.lists(st.text("ab~", min_size=1, max_size=3), max_size=2),
    max_tokens=st.integers(1, 9),
    min_tokens=st.integers(0, 3),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    seed=st.integers(0, 1000),
)
async def test_any_cuts_give_the_uninterrupted_stream(
    outputs, stop, max_tokens, min_tokens, cuts, seed
):
    n, rng = len(outputs), random.Random(seed)
    options = {"n": n, "stop": stop, "max_tokens": max_tokens}
    options["min_tokens"] = min(min_tokens, max_tokens)
    outputs = [output + "\0" * 9 for output in outputs]

    def parts():
        return RouterParts(*outputs, step=rng.randint(1, 3), prefill=rng.choice((0, 2)))

    whole_texts, whole_ids, whole = await follow(parts(), request(seed=7, **options))
    texts, ids = [""] * n, [[] for _ in range(n)]
    for cut in [*cuts, None]:
        more_texts, more_ids, completed = await follow(
            parts(), resuming(7, ids, **options), until=cut
        )
        texts = [a + b for a, b in zip(texts, more_texts, strict=True)]
        ids = [a + b for a, b in zip(ids, more_ids, strict=True)]
    assert texts == whole_texts
    ends = [(one.finish_reason, one.stop_string) for one in completed.choices]
    assert ends == [(one.finish_reason, one.stop_string) for one in whole.choices]
    assert all(a[: len(b)] == b or b[: len(a)] == a for a, b in zip(ids, whole_ids, strict=True)), (
        "steps may end behind a stop string"
    )
    assert [one.completion_tokens for one in completed.choices] == list(map(len, ids))
