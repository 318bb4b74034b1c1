"""Names follow baton.naming, whatever the steps in which a sequence grows."""

from baton.naming import blob_name, chain_next, chain_root
from engine.kv.names import SequenceNames
from tests.support.layouts import layout_of


def test_names_are_the_chain_over_blocks() -> None:
    layout = layout_of([None, 6])
    tokens = list(range(11))
    names = SequenceNames(layout, b"salt")
    names.grow(tokens)
    chain = chain_root(layout.fingerprint, b"salt")
    for index in range(2):
        chain = chain_next(chain, tokens[index * 4 : index * 4 + 4])
        assert names.full(index) == (blob_name(chain, 0), blob_name(chain, 1))
    tail = chain_next(chain, tokens[8:10])
    assert names.tail(tokens, 10) == (blob_name(tail, 0), blob_name(tail, 1))


def test_growing_in_steps_gives_the_same_names() -> None:
    tokens = list(range(30))
    whole = SequenceNames(layout_of([None]), b"")
    whole.grow(tokens)
    stepwise = SequenceNames(layout_of([None]), b"")
    for end in (0, 1, 4, 5, 5, 17, 30):
        stepwise.grow(tokens[:end])
    assert [whole.full(i) for i in range(7)] == [stepwise.full(i) for i in range(7)]


def test_names_differ_by_salt_tokens_and_length() -> None:
    layout, tokens = layout_of([None]), list(range(8))

    def of(salt: bytes, tokens: list[int]) -> set[bytes]:
        names = SequenceNames(layout, salt)
        names.grow(tokens)
        return {names.full(1)[0], names.tail(tokens, 6)[0], names.tail(tokens, 7)[0]}

    assert len(of(b"", tokens) | of(b"x", tokens) | of(b"", [9, *tokens[1:]])) == 9
