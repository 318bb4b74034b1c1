"""What the router makes of constraints: sense is told from nonsense, fast, in another process."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from baton.errors import Exhausted, InvalidRequest
from services.common.constraints import Constraint, Kind
from services.router.constraint_checker import ConstraintChecker

PATH = "sampling.constraint"


@pytest.fixture
async def checker() -> AsyncIterator[ConstraintChecker]:
    made = ConstraintChecker()
    yield made
    await made.close()


def schema(value: object) -> Constraint:
    return Constraint(Kind.JSON_SCHEMA, json.dumps(value))


def regex(text: str) -> Constraint:
    return Constraint(Kind.REGEX, text)


def grammar(text: str) -> Constraint:
    return Constraint(Kind.GRAMMAR, text)


def nested(levels: int) -> Constraint:
    return Constraint(Kind.JSON_SCHEMA, '{"items":' * levels + "{}" + "}" * levels)


GOOD = [
    schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    schema({"enum": [f"value {index}" for index in range(2000)]}),
    schema({"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n"}),
    schema(True),
    Constraint(Kind.JSON_OBJECT),
    Constraint(Kind.CHOICE, texts=("yes", 'n"o\n', "\u00e9/\\")),
    regex(r"[0-9]{4}-[0-9]{2}"),
    regex("a*"),
    grammar('start: "a" b+\nb: /[0-9]/'),
]  # fmt: skip
BAD = [
    (schema({"type": "string", "minLength": 5, "maxLength": 2}), "nsatisfiable"),
    (schema(False), "no text is of it"),
    (schema({"$ref": "#"}), "no text is of it"),
    (schema({"not": {"type": "string"}}), "Unimplemented keys"),
    (schema({"type": "wrong"}), "Invalid type"),
    (schema({"$ref": "#/$defs/gone"}), "gone"),
    (schema([1]), "must be a JSON object"),
    (Constraint(Kind.JSON_SCHEMA, "{"), "not valid JSON"),
    (nested(5000), "nested|recursion"),
    (Constraint(Kind.JSON_SCHEMA, "[" * 60_000), "nested too deeply"),
    (regex(r"(a)\1"), "backreferences"),
    (regex("(a"), "unclosed"),
    (regex(r"a\bc"), "regex"),
    (grammar("start: missing"), "unknown name"),
    (grammar("start: ("), "Expected"),
    (grammar("nothing"), "."),
    (grammar('start: "a" <|special|>'), "unknown special token"),
    (grammar('start: ""'), "empty text alone"),
]


async def test_sense_is_told_from_nonsense_with_the_field_and_a_reason(
    checker: ConstraintChecker,
) -> None:
    for constraint in GOOD:
        await checker.check(PATH, constraint)
    for constraint, told in BAD:
        with pytest.raises(InvalidRequest, match=told) as caught:
            await checker.check(PATH, constraint)
        assert caught.value.field == f"{PATH}.{constraint.kind.value}"
        assert len(caught.value.message) < 600
    with pytest.raises(InvalidRequest) as caught:
        await checker.check("x", Constraint(Kind.CHOICE, texts=("",)))
    assert caught.value.field == "x.choice.texts"


SLOW = schema({"type": "integer", "multipleOf": 1_000_003})


async def test_what_takes_too_long_is_ended_and_others_do_not_feel_it(
    checker: ConstraintChecker,
) -> None:
    await checker.check(PATH, regex("fine"))
    gap = await _largest_gap_while(checker, SLOW)
    assert gap < 0.5  # the processor time that it gets
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="takes too long"):
        await checker.check(PATH, SLOW)
    assert time.monotonic() - began < 0.5, "the answer was not remembered"
    await checker.check(PATH, regex("fine, too"))


async def _largest_gap_while(checker: ConstraintChecker, constraint: Constraint) -> float:
    async def refused() -> None:
        with pytest.raises(InvalidRequest, match="takes too long") as caught:
            await checker.check(PATH, constraint)
        assert caught.value.field == f"{PATH}.json_schema"

    checking = asyncio.create_task(refused())
    largest, last = 0.0, time.monotonic()
    while not checking.done():
        await asyncio.sleep(0.002)
        now = time.monotonic()
        largest, last = max(largest, now - last), now
    await checking
    return largest


async def test_a_child_that_dies_by_itself_is_replaced(checker: ConstraintChecker) -> None:
    await checker.check(PATH, regex("a"))
    assert checker._child is not None
    os.kill(checker._child.pid, signal.SIGKILL)
    await checker.check(PATH, regex("b"))
    with pytest.raises(InvalidRequest):
        await checker.check(PATH, regex("("))


@pytest.mark.parametrize(
    "constraint", [regex("b"), regex("b" * 8000), schema({"description": "\u00e9" * 30_000})]
)
async def test_a_child_that_is_held_still_says_nothing_of_the_constraint(
    constraint: Constraint,
) -> None:
    # The last one is more than a pipe takes.
    checker = ConstraintChecker(check_s=0.2)
    try:
        await checker.check(PATH, regex("a"))
        assert checker._child is not None
        os.kill(checker._child.pid, signal.SIGSTOP)
        async with asyncio.timeout(5.0):
            with pytest.raises(Exhausted) as caught:
                await checker.check(PATH, constraint)
        assert caught.value.reason == "CONSTRAINTS_BUSY"
        assert caught.value.retry_after
        for _ in range(20):  # the answer is not remembered; a busy machine may be slow again
            try:
                await checker.check(PATH, constraint)
                return
            except Exhausted:
                continue
        pytest.fail("the constraint is never checked")
    finally:
        await checker.close()


async def test_an_asker_that_leaves_does_not_mix_up_the_answers(
    checker: ConstraintChecker,
) -> None:
    await checker.check(PATH, regex("a"))
    for _ in range(3):
        asking = asyncio.create_task(checker.check(PATH, regex("[a-z]{1,500}")))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        with pytest.raises(InvalidRequest):
            await checker.check(PATH, regex("("))
        await checker.check(PATH, regex("c"))


async def test_closing_ends_the_child(checker: ConstraintChecker) -> None:
    await checker.check(PATH, regex("a"))
    child = checker._child
    assert child is not None
    await checker.close()
    assert child.returncode is not None
