"""What the limits of constraints let through, with more tokens than the bytes alone."""

import contextlib
import json
import random
import time

import numpy as np
import pytest

from services.common.constraints import Constraint, Kind
from services.common.constraints.grammars import GrammarError, TokenTable

STEPS = 30
LONGEST_S = 0.15
"""For one mask; these take 20 ms at most. Without limits on items they take seconds."""


@pytest.fixture(scope="module")
def table() -> TokenTable:
    """Long words of few letters: each prefix of one is a place where a parser stands."""
    letters = random.Random(1)
    words = {"".join(letters.choices("abcd", k=12)).encode() for _ in range(20_000)}
    return TokenTable([*(bytes([value]) for value in range(256)), *sorted(words)], ())


def longest_s(table: TokenTable, constraint: Constraint) -> float:
    """Of the masks of some text. Raises GrammarError where a limit ends it."""
    matcher = table.matcher(constraint)
    longest = 0.0
    for step in range(STEPS):
        began = time.process_time()
        bits = np.frombuffer(table.allowed(matcher), np.uint8)
        longest = max(longest, time.process_time() - began)
        tokens = np.flatnonzero(np.unpackbits(bits, bitorder="little"))[-50:].tolist()
        if not tokens:
            break
        began = time.process_time()
        matcher.consume_token(tokens[step * 7 % len(tokens)])
        longest = max(longest, time.process_time() - began)
        if matcher.is_stopped():
            break
    return longest


@pytest.mark.parametrize(
    "rules",
    [
        "start: e\ne: e e e | e e | /./",
        'start: a\na: a a | /[a-z ]/ | ""',
        "start: b+\nb: b b | /./",
    ],
)
def test_no_grammar_keeps_a_batch_waiting(table: TokenTable, rules: str) -> None:
    constraint = Constraint(Kind.GRAMMAR, rules)
    with contextlib.suppress(GrammarError):
        assert longest_s(table, constraint) < LONGEST_S


LARGE = [
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}},
    {"enum": [f"value {n}" for n in range(4000)]},
    {"anyOf": [{"type": "object", "properties": {f"a{n}": {}, f"b{n}": {}}} for n in range(60)]},
]


@pytest.mark.parametrize("schema", LARGE)
def test_large_schemas_are_within_the_limits(table: TokenTable, schema: object) -> None:
    constraint = Constraint(Kind.JSON_SCHEMA, json.dumps(schema))
    TokenTable.of_bytes().check(constraint)
    assert longest_s(table, constraint) < LONGEST_S
