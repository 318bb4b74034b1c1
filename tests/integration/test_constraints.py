"""Outputs that are held to a language, through whole clusters: every way there is to say which,
over every handoff, and refusals before anything is spent."""

import asyncio
import itertools
import json
import time

import pytest

from baton import errors
from baton.client import AsyncClient
from baton.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from baton.events import Delta, FinishReason, ResumeFrom
from tests.support.prompts import prompt_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 10, "maximum": 99},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}
JSON = JsonSchema(json.dumps(SCHEMA))
SAMPLED = {"temperature": 1.1, "seed": 11, "max_tokens": 150}
SLOW = JsonSchema(json.dumps({"type": "integer", "multipleOf": 1_000_003}))


def check_json(text):
    value = json.loads(text)
    assert sorted(value) == ["name", "size"]
    assert len(value["name"]) <= 8
    assert 10 <= value["size"] <= 99


async def test_choices_over_a_handoff_each_of_the_language(cluster):
    async with AsyncClient(cluster.address) as client:
        whole = await client.complete(prompt_of(40), n=3, constraint=JSON, **SAMPLED)
        for choice in whole.choices:
            check_json(choice.text)
            assert choice.finish_reason is FinishReason.STOP
        assert len({choice.text for choice in whole.choices}) > 1
        again = await client.complete(prompt_of(40), n=3, constraint=JSON, **SAMPLED)
        assert [one.text for one in again.choices] == [one.text for one in whole.choices]


async def test_every_way_to_say_what_the_output_must_be(cluster):
    kinds = [
        (Regex("[a-c]{3}-[0-9]{2}"), lambda text: len(text) == 6 and text[3] == "-"),
        (Grammar('start: "n=" /[0-9]{2}/'), lambda text: text[:2] == "n=" and len(text) == 4),
        (Choice(("yes", "no, not at all")), {"yes", "no, not at all"}.__contains__),
        (Choice(("a",)), "a".__eq__),
    ]
    options = SAMPLED | {"min_tokens": 40, "ignore_eos": True, "logprobs": 1}
    async with AsyncClient(cluster.address) as client:
        for constraint, fits in kinds:
            whole = await client.complete(prompt_of(17), constraint=constraint, **options)
            assert fits(whole.choices[0].text), whole.choices[0].text
            assert whole.choices[0].finish_reason is FinishReason.STOP
        whole = await client.complete(prompt_of(17), constraint=JsonObject(), **SAMPLED)
        assert whole.choices[0].text.lstrip()[0] == "{"


async def test_a_stream_that_goes_on_elsewhere_stays_in_the_language(cluster):
    async with AsyncClient(cluster.address) as client:
        whole = await client.complete(prompt_of(30), constraint=JSON, **SAMPLED)
        ids = whole.choices[0].token_ids
        for count in (1, len(ids) // 2, len(ids) - 1, len(ids)):
            resume = ResumeFrom(seed=11, emitted=[ids[:count]])
            options = {"temperature": 1.1, "max_tokens": 150, "resume_from": resume}
            rest = await client.complete(prompt_of(30), constraint=JSON, **options)
            assert rest.choices[0].token_ids == ids[count:]
            assert rest.choices[0].finish_reason is FinishReason.STOP
        foreign = ResumeFrom(seed=11, emitted=[prompt_of(3)])
        with pytest.raises(errors.InvalidRequest, match="can't follow"):
            await client.complete(prompt_of(30), constraint=JSON, resume_from=foreign)


async def test_nonsense_is_refused_with_its_field_and_neighbours_do_not_feel_it(cluster):
    refused = [
        (Regex("("), "regex", ""),
        (JsonSchema("{"), "json_schema", "not valid JSON"),
        (JsonSchema('{"type": "string", "minLength": 3, "maxLength": 1}'), "json_schema", ""),
        (Grammar("start: nothing"), "grammar", "unknown name"),
        (Choice(()), "choice.texts", "1 to 256"),
        (Regex("a" * 9000), "regex", "8192"),
        (SLOW, "json_schema", "takes too long"),
    ]
    async with AsyncClient(cluster.address) as client:
        await client.complete(prompt_of(5), constraint=Regex("ab"), max_tokens=5)
        watching = asyncio.create_task(_largest_gap(client))
        for constraint, field, told in refused:
            began = time.monotonic()
            with pytest.raises(errors.InvalidRequest) as caught:
                await client.complete(prompt_of(5), constraint=constraint, max_tokens=5)
            assert time.monotonic() - began < 5.0
            assert caught.value.field == f"sampling.constraint.{field}"
            assert told in caught.value.message
        assert await watching < 1.0


async def _largest_gap(client):
    """The longest wait between two tokens of a stream without a constraint."""
    options = {"max_tokens": 400, "ignore_eos": True, "temperature": 0.0}
    at = []
    async with client.generate(prompt_of(20, 1), **options) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                at.append(time.monotonic())
    return max(later - earlier for earlier, later in itertools.pairwise(at))
