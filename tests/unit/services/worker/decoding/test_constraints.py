"""Outputs held to a language by real engines, over every way in which a sequence changes hands."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from baton.errors import InvalidRequest, Unavailable
from baton.v1 import sampling_pb2
from engine.types import FinishReason, SequenceOutput
from services.common.constraints import Constraint, Kind
from services.common.constraints.grammars import TokenTable
from services.worker.constraints import MatcherMask, raise_failure
from tests.support.workers import (
    decode_request,
    failure_of,
    handoff_of,
    prefill_request,
    prompt_request,
    whole,
    whole_rest,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 10, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
LONG = {"temperature": 1.2, "seed": 5, "max_tokens": 200, "ignore_eos": False}


def held(**kind) -> dict[str, object]:
    return LONG | {"constraint": sampling_pb2.Constraint(**kind)}


JSON = held(json_schema=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def text_of(tiny_model):
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def check_json(text: str) -> None:
    value = json.loads(text)
    assert sorted(value) == ["name", "size", "tags"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 8
    assert 10 <= value["size"] <= 99
    assert isinstance(value["size"], int)
    assert len(value["tags"]) <= 2
    assert set(value["tags"]) <= {"red", "green"}


def first_ids(response) -> list[int]:
    return [first.token.token_id for first in response.first_tokens]


async def test_a_handoff_keeps_the_language_and_changes_nothing(pair, prompt_of, text_of):
    for seed in range(3):
        prompt, values = prompt_of(20 + seed), JSON | {"seed": seed}
        response, stream = await pair.generate(prompt, **values)
        ids = [*first_ids(response), *stream.ids]
        check_json(text_of(ids))
        assert stream.finished.finish_reason == sampling_pb2.FINISH_REASON_STOP
        alone = await whole(pair.decode.decode(prompt_request(prompt, **values)))
        assert alone.ids == ids


async def test_every_kind_of_language_and_where_its_text_ends(pair, prompt_of, text_of):
    lark = 'start: "n=" NUMBER ";"\nNUMBER: /[0-9]{2,4}/'
    for kind, fits in [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"grammar": lark}, lambda text: text.startswith("n=") and text[2:-1].isdigit()),
        ({"choice": {"texts": ["yes", "no, not at all"]}}, {"yes", "no, not at all"}.__contains__),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ]:
        values = held(**kind) | {"temperature": 0.7, "ignore_eos": True}
        stream = await whole(pair.decode.decode(prompt_request(prompt_of(9), **values)))
        text = text_of(stream.ids)
        if stream.finished.finish_reason == sampling_pb2.FINISH_REASON_STOP:
            assert fits(text), text
        else:
            assert "json_object" in kind, "a text went on that nothing could follow"


async def test_each_of_several_choices_is_of_the_language(pair, prompt_of, text_of):
    response = await pair.prefill.prefill(prefill_request(prompt_of(27), choices=3, **JSON))
    handoff = response.handoff
    streams = await asyncio.gather(
        *(whole(pair.decode.decode(decode_request(handoff_of(handoff, n)))) for n in range(3))
    )
    texts = [
        text_of([first, *stream.ids])
        for first, stream in zip(first_ids(response), streams, strict=True)
    ]
    for text in texts:
        check_json(text)
    assert len(set(texts)) > 1
    await pair.transfer.release(handoff.lease_id)


async def test_a_first_token_that_completes_the_text_ends_it(pair, prompt_of, text_of):
    request = prefill_request(prompt_of(9), choices=2, **held(choice={"texts": ["a", "b"]}))
    response = await pair.prefill.prefill(request)
    assert not response.HasField("handoff")
    for first in response.first_tokens:
        assert first.finish_reason == sampling_pb2.FINISH_REASON_STOP
        assert text_of([first.token.token_id]) in {"a", "b"}


async def test_who_goes_on_after_some_tokens_draws_the_same(pair, prompt_of, text_of):
    prompt = prompt_of(12)
    ids = (await whole(pair.decode.decode(prompt_request(prompt, **JSON)))).ids
    check_json(text_of(ids))
    for count in (1, len(ids) // 2, len(ids) - 1):
        again = await whole(pair.decode.decode(prompt_request(prompt, emitted=ids[:count], **JSON)))
        assert again.ids == ids[count:]
    complete = await whole(pair.decode.decode(prompt_request(prompt, emitted=ids, **JSON)))
    assert complete.ids == []
    assert complete.finished.finish_reason == sampling_pb2.FINISH_REASON_STOP


async def test_a_sequence_that_is_sent_elsewhere_keeps_its_language(pair, prompt_of, text_of):
    prompt = prompt_of(14)
    ids = (await whole(pair.decode.decode(prompt_request(prompt, **JSON)))).ids
    call = pair.decode.decode(prompt_request(prompt, **JSON))
    await call.read()
    pair.decode.host.runs.drain_all()
    left = await whole_rest(call)
    handoff = left.handed_off.handoff
    handoff.request_id = f"{handoff.request_id}-again"
    rest = await whole(pair.prefill.decode(decode_request(handoff)))
    emitted = [token.token_id for token in handoff.choices[0].emitted]
    assert [*emitted, *rest.ids] == ids
    await pair.transfer.release(handoff.lease_id)


async def test_what_can_not_be_is_refused_with_its_field(pair, prompt_of):
    for kind, field in [
        ({"regex": "("}, "prompt.sampling.constraint.regex"),
        ({"json_schema": "{"}, "prompt.sampling.constraint.json_schema"),
        ({"choice": {}}, "prompt.sampling.constraint.choice.texts"),
    ]:
        error = await failure_of(pair.decode.decode(prompt_request(prompt_of(9), **held(**kind))))
        assert isinstance(error, InvalidRequest)
        assert error.field == field
    request = prompt_request(prompt_of(9), emitted=[40, 41], **held(choice={"texts": ["yes"]}))
    error = await failure_of(pair.decode.decode(request))
    assert isinstance(error, InvalidRequest)
    assert error.field == "prompt.emitted_token_ids[0]"


async def test_a_constraint_that_leaves_nothing_ends_its_stream_alone(pair, prompt_of, text_of):
    yes = held(choice={"texts": ["yes"]})
    values = dict(yes)
    others = pair.decode.decode(prompt_request(prompt_of(30), **JSON))
    letters = [token for token in range(384) if text_of([token]) in {"y", "ye", "yes"}]
    values["bad_sequences"] = [sampling_pb2.TokenSequence(token_ids=[one]) for one in letters]
    error = await failure_of(pair.decode.decode(prompt_request(prompt_of(9), **values)))
    assert isinstance(error, InvalidRequest)
    assert error.field == "sampling.constraint"
    assert "no token can follow" in error.message
    error = await failure_of(pair.prefill.prefill(prefill_request(prompt_of(9), **values)))
    assert isinstance(error, InvalidRequest)
    check_json(text_of((await whole(others)).ids))


def test_a_mask_that_is_late_is_the_workers_fault_and_another_may_try():
    table = TokenTable.of_bytes()
    matcher = table.matcher(Constraint(Kind.REGEX, "[a-z]+"))
    output = SequenceOutput("r", (), 0, (), FinishReason.FAILED)
    busy = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(busy.wait, 10)
        try:
            mask = MatcherMask(matcher, table, pool)
            with pytest.raises(TimeoutError) as late:
                mask.fill(torch.zeros(8, dtype=torch.int32))
            with pytest.raises(Unavailable):
                raise_failure(replace(output, failure=late.value))
        finally:
            busy.set()
