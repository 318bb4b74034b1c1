"""The prefix rule against a plain statement of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.layout import KVLayout
from engine.kv.names import SequenceNames
from engine.kv.prefix import Prefix
from engine.types import Request, SamplingParams
from tests.support.layouts import layout_of


def make_prefix(layout: KVLayout, prompt: int, emitted: int = 0) -> Prefix:
    request = Request(
        "r", tuple(range(prompt)), SamplingParams(), emitted=tuple(range(100, 100 + emitted))
    )
    return Prefix(layout, request, SequenceNames(layout, b""))


def everything(group: int, name: bytes) -> bool:
    return True


def test_at_least_one_token_is_left_to_compute() -> None:
    layout = layout_of([None, 6])
    boundaries = {
        prompt: make_prefix(layout, prompt).longest(everything) for prompt in range(1, 14)
    }
    assert boundaries == {prompt: (prompt - 1) // 4 * 4 for prompt in range(1, 14)}


def test_a_handed_over_sequence_resumes_inside_a_block() -> None:
    layout = layout_of([None, 6])
    for prompt in range(1, 14):
        assert make_prefix(layout, prompt, emitted=1).longest(everything) == prompt


def test_a_sequence_that_went_on_finds_the_tail_of_its_handoff() -> None:
    prefix = make_prefix(layout_of([None]), 10, emitted=4)
    last_tail = prefix.name(0, 3, 13)
    assert prefix.longest(everything) == 13
    assert prefix.longest(lambda group, name: name != last_tail) == 12
    handed_over = set(make_prefix(layout_of([None]), 10, emitted=1).all_names())
    assert prefix.longest(lambda group, name: name in handed_over) == 10


def test_windows_need_only_their_blocks() -> None:
    prefix = make_prefix(layout_of([None, 6]), 30)
    window = {prefix.name(1, index, 28) for index in (5, 6)}
    assert prefix.longest(lambda group, name: group == 0 or name in window) == 28


def test_nothing_there_is_no_boundary() -> None:
    assert make_prefix(layout_of([None]), 30, emitted=2).longest(lambda group, name: False) == 0


@settings(max_examples=200, deadline=None)
@given(
    windows=st.lists(st.sampled_from([None, 1, 3, 6, 9, 50]), min_size=1, max_size=3),
    prompt=st.integers(1, 40),
    emitted=st.integers(0, 5),
    data=st.data(),
)
def test_longest_is_the_longest_that_the_rule_allows(windows, prompt, emitted, data) -> None:
    layout = layout_of(windows)
    prefix = make_prefix(layout, prompt, emitted)
    names = sorted(set(prefix.all_names()))
    gone = set(data.draw(st.lists(st.sampled_from(names), max_size=4))) if names else set()

    def serves(boundary: int) -> bool:
        return all(
            prefix.name(group, index, boundary) not in gone
            for group in range(len(windows))
            for index in layout.blocks_for(group, boundary)
        )

    last = prompt + emitted - 1
    ends = {prompt, last} if emitted else set()
    boundaries = [b for b in range(last + 1) if b % 4 == 0 or b in ends]
    expected = max(b for b in boundaries if serves(b))
    assert prefix.longest(lambda group, name: name not in gone) == expected
