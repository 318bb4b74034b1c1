import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.router.ending import Ending
from services.router.events import FinishReason, SampledToken
from services.router.output import Output
from tests.support.router_parts import LetterText

END = 0


def tokens(text):
    return [SampledToken(ord(character)) for character in text]


def output(stops=(), *, min_tokens=0, ends=(END,)):
    return Output(LetterText(), stops, Ending(frozenset(ends), min_tokens, 1000))


def everything(output, steps):
    """Text shown for steps of text; and each shown piece must be final."""
    shown = [output.push(tokens(step)) for step in steps]
    return "".join(shown) + output.finish()


def test_text_comes_with_its_token_or_later():
    one = output()
    assert one.push(tokens("a")) == "a"
    assert one.push(tokens("~")) == ""
    assert one.push(tokens("b")) == "~b"
    assert one.push(tokens("~")) == ""
    assert one.finish() == "~"


def test_stop_string_in_the_detokenizers_rest():
    one = output(["b~"])
    assert one.push(tokens("ab~")) == "a"
    assert one.stop_string is None
    assert one.finish() == ""
    assert one.stop_string == "b~"


def test_end_token_has_no_text_even_if_its_id_has_one():
    one = output(ends=[ord("x")])
    assert one.push(tokens("a")) == "a"
    assert one.push(tokens("x")) == ""


def test_end_token_before_min_tokens_is_text():
    one = output(ends=[ord("x")], min_tokens=2)
    assert one.push(tokens("xx")) == "xx"
    assert one.push(tokens("x")) == ""


def test_nothing_is_shown_behind_a_stop_string():
    one = output(["b"])
    assert one.push(tokens("abcd")) == "a"
    assert one.push(tokens("e")) == ""
    assert one.finish() == ""


def test_stop_string_that_began_before_min_tokens_counts():
    one = output(["bc"], min_tokens=2)
    assert everything(one, "abcd") == "a"
    assert one.stop_string == "bc"


@given(st.text("ab", max_size=12), st.integers(0, 12), st.data())
def test_any_cut_into_steps_gives_the_same_text(text, min_tokens, data):
    """What a plain search finds: the first place where a stop string ends after min_tokens,
    the search beginning again behind one that ended too early."""
    stop = data.draw(st.text("ab", min_size=1, max_size=3))
    expected, begin = text, 0
    while (at := text.find(stop, begin)) >= 0:
        if at + len(stop) > min_tokens:
            expected = text[:at]
            break
        begin = at + len(stop)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    steps = [text[a:b] for a, b in itertools.pairwise(cuts)]
    one = output([stop], min_tokens=min_tokens)
    assert everything(one, steps) == expected
    assert one.stop_string == (None if expected == text else stop)


def test_reached():
    ending = Ending(frozenset({END}), min_tokens=1, max_tokens=3)
    assert ending.reached([]) is None
    assert ending.reached([SampledToken(END)]) is None
    assert ending.reached([SampledToken(1), SampledToken(END)]) is FinishReason.STOP
    assert ending.reached(tokens("abc")) is FinishReason.LENGTH
    assert ending.reached([SampledToken(1), SampledToken(2), SampledToken(END)]) is (
        FinishReason.STOP
    )


def test_the_rest_comes_once():
    one = output(["abc"])
    assert one.push(tokens("ab")) == ""
    assert [one.finish(), one.finish()] == ["ab", ""]


def test_first_end():
    ending = Ending(frozenset({END}), min_tokens=1, max_tokens=3)
    assert ending.first_end([]) is None
    assert ending.first_end([END, 1]) is None
    assert ending.first_end([END, 1, END, END]) == 2
