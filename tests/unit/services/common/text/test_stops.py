from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.text import StopMatcher


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The earliest beginning wins, then the shortest."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def run(parts: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join([matcher.push(part) for part in parts])
    return shown + matcher.finish(), matcher.matched


def cuts(text: str) -> list[list[str]]:
    """Every way of cutting `text` into pieces."""
    places = range(1, len(text))
    return [
        [text[a:b] for a, b in zip((0, *chosen), (*chosen, len(text)), strict=True)]
        for count in range(len(text))
        for chosen in combinations(places, count)
    ]


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("hello END world", ["END"]),
        ("aaab", ["aab"]),
        ("xabcdex", ["abcdf", "bc"]),
        ("xabcd", ["abcd", "bc"]),
        ("abab", ["abac", "bab"]),
        ("abc", ["abcd", "c"]),
        ("ababa", ["aba", "ab"]),
        ("no stop", ["\n\n", "###"]),
        ("é🙂é", ["🙂"]),
    ],
)
def test_every_way_of_cutting_gives_the_reference(text, stops):
    expected = reference(text, stops)
    for parts in cuts(text[:9]) if len(text) > 9 else cuts(text):
        whole = "".join(parts)
        assert run([*parts, text[len(whole) :]], stops) == expected


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_equals_the_reference(parts, stops):
    assert run(parts, stops) == reference("".join(parts), stops)


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_holds_back_no_more_than_a_beginning_of_a_stop(parts, stops):
    matcher = StopMatcher(stops)
    shown, pushed = "", ""
    for part in parts:
        shown += matcher.push(part)
        pushed += part
        if matcher.matched is not None:
            break
        held = pushed[len(shown) :]
        assert pushed.startswith(shown)
        assert held == "" or any(stop.startswith(held[: len(stop)]) for stop in stops)


def test_shows_text_at_once_that_no_stop_can_begin_in():
    matcher = StopMatcher(["###"])
    assert matcher.push("hello") == "hello"
    assert matcher.push("#") == ""
    assert matcher.push("#x") == "##x"
    assert matcher.matched is None


def test_shows_nothing_from_the_stop_on():
    matcher = StopMatcher(["END"])
    assert matcher.push("so E") == "so "
    assert matcher.push("ND and more") == ""
    assert matcher.matched == "END"
    assert matcher.push("more") == ""
    assert matcher.finish() == ""


def test_finish_decides_between_a_whole_stop_and_an_unfinished_earlier_one():
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xabc") == "x"
    assert matcher.matched is None
    assert matcher.finish() == "a"
    assert matcher.matched == "bc"


def test_without_stops_all_is_shown():
    assert run(["a", "", "b"], []) == ("ab", None)


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_stays_quick_where_a_stop_nearly_matches_for_ever():
    matcher = StopMatcher(["a" * 255 + "b"])
    shown = "".join([matcher.push("a") for _ in range(50_000)])
    assert len(shown) == 50_000 - 255
