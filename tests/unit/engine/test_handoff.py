"""Blocks leave one engine and go on in another, whole, in part or damaged: the text is one."""

import pytest

from engine.types import FinishReason, Request
from tests.support.engines import (
    assert_idle,
    drive,
    fake_engine,
    greedy,
    import_blocks,
    run,
    run_exporting,
)
from tests.support.fake_model import FakeModel

MODEL = FakeModel((None, 6))


def prefill_request(length: int, max_tokens: int = 8) -> Request:
    return Request(
        "prefill", tuple(range(length)), greedy(max_tokens), hand_over_after=1, export=True
    )


def decode_request(prefill: Request, emitted: list[int]) -> Request:
    return Request("decode", prefill.prompt, prefill.sampling, emitted=tuple(emitted))


@pytest.mark.parametrize("length", range(1, 40))
def test_every_length_is_handed_over_whole(length: int) -> None:
    source, target = fake_engine(), fake_engine()
    prefill = prefill_request(length)
    first, blobs = run_exporting(source, prefill)
    assert first.reason is FinishReason.HANDOVER
    assert len(first.tokens) == 1
    assert_idle(source)
    decode = decode_request(prefill, first.tokens)
    assert import_blocks(target, decode, blobs) == length, "nothing is computed again"
    rest = drive(target)["decode"]
    assert first.tokens + rest.tokens == MODEL.greedy(prefill.prompt, 8)
    assert_idle(target)


@pytest.mark.parametrize("length", [1, 4, 5, 8, 21, 24, 33])
def test_exports_are_what_a_resume_needs_and_none_twice(length: int) -> None:
    engine = fake_engine()
    result, blobs = run_exporting(engine, prefill_request(length))
    places = [(ref.group, ref.index) for ref in result.exports]
    assert len(set(places)) == len(places) == len(blobs)
    for group in range(2):
        needed = set(engine.layout.blocks_for(group, length))
        assert needed <= {index for g, index in places if g == group}
    for ref in result.exports:
        assert ref.used_tokens == min(4, length - ref.index * 4)


def test_exports_include_what_came_from_the_cache() -> None:
    engine = fake_engine()
    run(engine, Request("earlier", tuple(range(30)), greedy(1)))
    result, blobs = run_exporting(engine, prefill_request(33))
    assert engine.status().cached_tokens == 28
    decode = decode_request(prefill_request(33), result.tokens)
    assert import_blocks(fake_engine(), decode, blobs) == 33


@pytest.mark.parametrize("length", [5, 24, 26])
def test_lost_blobs_are_computed_again(length: int) -> None:
    prefill = prefill_request(length)
    first, blobs = run_exporting(fake_engine(), prefill)
    for ref in first.exports:
        target = fake_engine()
        decode = decode_request(prefill, first.tokens)
        needed = ref.index in target.layout.blocks_for(ref.group, length)
        cached = import_blocks(target, decode, blobs, lost=[ref.name])
        assert (cached < length) == needed
        rest = drive(target)["decode"]
        assert first.tokens + rest.tokens == MODEL.greedy(prefill.prompt, 8)
        assert_idle(target)


def test_what_was_not_filled_is_never_found_and_leaves_no_garbage() -> None:
    prefill = prefill_request(26)
    first, blobs = run_exporting(fake_engine(), prefill)
    target = fake_engine(windows=(None, 6))
    decode = decode_request(prefill, first.tokens)
    assert import_blocks(target, decode, blobs, lost=blobs) == 0
    target.cancel("decode")
    assert_idle(target)
    admission = target.admit(decode)
    assert admission.local_tokens == 0
    for pool in target._cache.storage.tensors:
        assert not pool.isnan().any()


def test_a_cancel_while_blocks_are_filled_leaves_no_garbage() -> None:
    prefill = prefill_request(26)
    first, blobs = run_exporting(fake_engine(), prefill)
    target = fake_engine()
    admission = target.admit(decode_request(prefill, first.tokens), blobs.keys())
    for ref in admission.missing:
        view = target.block_view(ref.group, ref.block)
        view[:] = b"\xff" * len(view)
    target.cancel("decode")
    assert_idle(target)
    assert target.admit(decode_request(prefill, first.tokens)).local_tokens == 0
    assert not any(pool.isnan().any() for pool in target._cache.storage.tensors)


def test_filled_blocks_are_cache_for_the_next() -> None:
    prefill = prefill_request(26)
    first, blobs = run_exporting(fake_engine(), prefill)
    target = fake_engine()
    import_blocks(target, decode_request(prefill, first.tokens), blobs)
    text = [*first.tokens, *drive(target)["decode"].tokens]
    prompt = (*range(26), *text[:2], 50, 51)
    assert target.admit(Request("next", prompt, greedy(3))).local_tokens == 28


def test_a_tail_belongs_to_one_sequence_alone() -> None:
    """Two that resume in the same partial block write different tokens into it."""
    prefill = prefill_request(26)
    first, blobs = run_exporting(fake_engine(), prefill)
    target = fake_engine()
    texts = {}
    for last in (first.tokens[0], 90):
        decode = Request(f"r{last}", prefill.prompt, greedy(8), emitted=(last,))
        assert import_blocks(target, decode, blobs) == 26
        texts[decode.request_id] = [last, *MODEL.greedy((*prefill.prompt, last), 7)]
    results = drive(target)
    for request_id, text in texts.items():
        assert text[1:] == results[request_id].tokens
    assert_idle(target)


def test_a_stream_that_went_on_resumes_from_the_first_handoff() -> None:
    prefill = prefill_request(26)
    _, blobs = run_exporting(fake_engine(), prefill)
    text = MODEL.greedy(prefill.prompt, 8)
    target = fake_engine()
    assert import_blocks(target, decode_request(prefill, text[:5]), blobs) == 26
    assert text[:5] + drive(target)["decode"].tokens == text


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_a_first_token_that_ends_the_output_is_no_handover(max_tokens: int) -> None:
    text = MODEL.greedy(range(10), 1)
    engine = fake_engine(eos=text if max_tokens > 1 else ())
    result, _ = run_exporting(engine, prefill_request(10, max_tokens))
    assert result.reason is (FinishReason.STOP if max_tokens > 1 else FinishReason.LENGTH)
    assert result.tokens == text
    assert all(ref.used_tokens == 4 for ref in result.exports), "no tail"
    assert_idle(engine)


def test_hand_over_after_several_tokens() -> None:
    prompt, text = tuple(range(10)), MODEL.greedy(range(10), 8)
    request = Request("r", prompt, greedy(8), hand_over_after=3, export=True)
    first, blobs = run_exporting(fake_engine(), request)
    assert first.tokens == text[:3]
    target = fake_engine()
    assert import_blocks(target, decode_request(request, text[:3]), blobs) == 12
    assert drive(target)["decode"].tokens == text[3:]


def test_pinned_blocks_outlive_their_sequence_and_hold_up_no_one_for_good() -> None:
    """A pool full of pins makes sequences wait, not fail; released, they go on."""
    engine = fake_engine(windows=(None, 6), kv_bytes=900, max_sequences=2, max_position=30)
    pinned = []
    texts: dict[str, list[int]] = {}
    for i in range(6):
        request = Request(
            f"r{i}", tuple(range(i * 10, i * 10 + 20)), greedy(4), hand_over_after=1, export=True
        )
        engine.admit(request)
        engine.start(request.request_id)
        while engine.has_work:
            for output in engine.step():
                pinned += output.exports
                texts.setdefault(output.request_id, []).extend(t.token_id for t in output.tokens)
        if engine.status().running:
            break
    assert engine.status().running == 1, "the pool is full of pins"
    assert not engine.has_work
    assert engine.step() == []
    engine.check_integrity()
    engine.release_exports(pinned)
    assert engine.has_work
    results = drive(engine)
    assert results[f"r{i}"].tokens == MODEL.greedy(range(i * 10, i * 10 + 20), 1)
    assert_idle(engine)


def test_a_prefix_that_does_not_fit_beside_pins_is_not_fetched() -> None:
    prefill = prefill_request(26)
    first, blobs = run_exporting(fake_engine(), prefill)
    target = fake_engine(windows=(None, 6), kv_bytes=900, max_sequences=2, max_position=40)
    other = Request("other", tuple(range(40, 64)), greedy(4), hand_over_after=1, export=True)
    target.admit(other)
    target.start("other")
    results = drive(target, publish=lambda exports: None)
    admission = target.admit(decode_request(prefill, first.tokens), blobs.keys())
    assert (admission.cached_tokens, admission.missing) == (0, ())
    target.start("decode")
    target.release_exports(results["other"].exports)
    assert first.tokens + drive(target)["decode"].tokens == MODEL.greedy(prefill.prompt, 8)
