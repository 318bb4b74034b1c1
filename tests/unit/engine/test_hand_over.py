"""A sequence can leave at any moment and go on elsewhere, from all, some or none of its KV."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from baton.naming import BlobName
from engine.engine import Engine
from engine.errors import DuplicateRequest, IntegrityError, UnknownRequest
from engine.types import BlockRef, FinishReason, Request, SequenceOutput
from tests.support.engines import (
    assert_idle,
    drive,
    fake_engine,
    greedy,
    import_blocks,
    read_blocks,
    run,
    run_exporting,
)
from tests.support.fake_model import FakeModel

BLOCK = 4
STEP = 11
MAX_TOKENS = 9
MODEL = FakeModel((None, 6))


def engine_of(windows: Sequence[int | None] = (None, 6)) -> Engine:
    """Its chunks end inside blocks."""
    return fake_engine(windows=windows, max_step_tokens=STEP, block_size=BLOCK)


def request_of(length: int, **values: object) -> Request:
    return Request("r", tuple(range(length)), greedy(MAX_TOKENS), **values)  # type: ignore[arg-type]


class Handover:
    """A started request that is handed over after so many steps, and all that it put out."""

    def __init__(self, engine: Engine, request: Request, steps: int) -> None:
        self.text: list[int] = []
        self.exports: list[BlockRef] = []
        self.blobs: dict[BlobName, bytes] = {}
        self._engine = engine
        for _ in range(steps):
            self._step()
        self.exported_before = len(self.exports)
        assert engine.hand_over(request.request_id)
        engine.check_integrity()
        self.last = self._step()
        self.resumed = replace(request, request_id="resumed", emitted=tuple(self.text))

    def _step(self) -> SequenceOutput:
        (output,) = self._engine.step()
        self.text += [token.token_id for token in output.tokens]
        self.exports += output.exports
        self.blobs.update(read_blocks(self._engine, output.exports))
        self._engine.release_exports(output.exports)
        return output


def hand_over_after(engine: Engine, request: Request, steps: int) -> Handover:
    engine.admit(request)
    engine.start(request.request_id)
    return Handover(engine, request, steps)


# -- what a resume gets -----------------------------------------------------------------


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.parametrize("windows", [(None, 6), (None,), (5,), (None, 9, 3), (None, 1)])
@pytest.mark.parametrize("length", [1, 4, 10, 29])
def test_nothing_but_a_part_of_a_block_is_computed_again(
    length: int, windows: Sequence[int | None], export: bool
) -> None:
    model, request = FakeModel(windows), request_of(length, export=export)
    for steps in range(-(-length // STEP) + MAX_TOKENS - 1):
        source, target = engine_of(windows), engine_of(windows)
        handover = hand_over_after(source, request, steps)
        last, text = handover.last, handover.text
        assert (last.finish_reason, last.tokens) == (FinishReason.HANDOVER, ())
        assert last.kv_tokens == (length + len(text) - 1 if text else STEP * steps)
        assert last.computed_tokens == min(length, last.kv_tokens)
        assert_idle(source)
        found = import_blocks(target, handover.resumed, handover.blobs)
        assert found == last.kv_tokens - (0 if text else last.kv_tokens % BLOCK)
        assert text + drive(target)["resumed"].tokens == model.greedy(request.prompt, MAX_TOKENS)
        assert_idle(target)


@pytest.mark.parametrize("steps", [0, 2, 3, 5, 8])
def test_it_goes_on_later_on_the_same_engine(steps: int) -> None:
    engine, request = engine_of(), request_of(29)
    handover = hand_over_after(engine, request, steps)
    engine.admit(handover.resumed)
    cached = engine.start("resumed")
    assert cached == handover.last.kv_tokens // BLOCK * BLOCK
    assert handover.text + drive(engine)["resumed"].tokens == MODEL.greedy(range(29), MAX_TOKENS)
    assert_idle(engine)


@pytest.mark.parametrize("steps", [2, 3, 6, 9])
def test_lost_blobs_are_computed_again(steps: int) -> None:
    handover = hand_over_after(engine_of(), request_of(29), steps)
    for lost in ([ref.name] for ref in handover.exports):
        target = engine_of()
        import_blocks(target, handover.resumed, handover.blobs, lost)
        rest = drive(target)["resumed"].tokens
        assert handover.text + rest == MODEL.greedy(range(29), MAX_TOKENS)
        assert_idle(target)


def test_a_sequence_is_handed_over_again_and_again() -> None:
    request, text = request_of(10), []
    blobs: dict[BlobName, bytes] = {}
    while len(text) < MAX_TOKENS - 1:
        engine = engine_of()
        import_blocks(engine, replace(request, emitted=tuple(text)), blobs)
        handover = Handover(engine, replace(request, emitted=tuple(text)), 1)
        text += handover.text
        blobs = handover.blobs
    assert text == MODEL.greedy(range(10), MAX_TOKENS)[:-1]


# -- what is put out --------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6, 10])
def test_no_block_is_put_out_twice(steps: int) -> None:
    handover = hand_over_after(engine_of(), request_of(29, export=True), steps)
    places = [(ref.group, ref.index) for ref in handover.exports]
    assert len(set(places)) == len(places)
    if steps:
        assert handover.exported_before > 0


def test_a_sequence_that_exports_nothing_puts_all_out_when_it_leaves() -> None:
    handover = hand_over_after(engine_of(), request_of(29), 5)
    assert handover.exported_before == 0
    kv_tokens = handover.last.kv_tokens
    assert kv_tokens % BLOCK, "there is a tail"
    layout = engine_of().layout
    for group in range(2):
        exported = {ref.index: ref.used_tokens for ref in handover.exports if ref.group == group}
        needed = layout.blocks_for(group, kv_tokens)
        assert exported == {i: min(BLOCK, kv_tokens - BLOCK * i) for i in needed}


def test_what_came_from_the_cache_is_put_out_too() -> None:
    engine = engine_of()
    run(engine, Request("earlier", tuple(range(29)), greedy(1)))
    handover = hand_over_after(engine, request_of(29), 2)
    assert engine.status().cached_tokens == 28
    assert import_blocks(engine_of(), handover.resumed, handover.blobs) == 30


def test_inside_a_prompt_no_tail_is_put_out_that_nobody_could_find() -> None:
    handover = hand_over_after(engine_of(), request_of(29), 2)
    assert handover.last.kv_tokens == 22
    assert {ref.used_tokens for ref in handover.exports} == {BLOCK}


@pytest.mark.parametrize("steps", range(4))
def test_a_resume_that_leaves_while_its_output_is_computed_again(steps: int) -> None:
    """Without KV, the output is computed as a prompt is; the prompt's end is a boundary too."""
    text = MODEL.greedy(range(11), 20)
    request = Request("r", tuple(range(11)), greedy(30), emitted=tuple(text))
    handover = hand_over_after(engine_of(), request, steps)
    target = engine_of()
    resumed = replace(request, request_id="resumed", emitted=tuple(text + handover.text))
    expected = {0: 0, 1: 11, 2: 20, 3: 31}[steps]
    assert import_blocks(target, resumed, handover.blobs) == expected
    rest = drive(target)["resumed"].tokens
    assert text + handover.text + rest == MODEL.greedy(range(11), 30)


def test_a_sequence_that_never_started_puts_nothing_out() -> None:
    engine = engine_of()
    run(engine, Request("earlier", tuple(range(29)), greedy(1)))
    engine.admit(request_of(29))
    assert engine.hand_over("r")
    (output,) = engine.step()
    assert output == SequenceOutput("r", (), 0, (), FinishReason.HANDOVER, kv_tokens=0)
    assert_idle(engine)
    with pytest.raises(UnknownRequest):
        engine.start("r")


def test_blocks_that_were_to_be_filled_leave_no_garbage() -> None:
    prefill = Request("p", tuple(range(26)), greedy(8), hand_over_after=1, export=True)
    first, blobs = run_exporting(engine_of(), prefill)
    target = engine_of()
    decode = Request("r", prefill.prompt, greedy(8), emitted=tuple(first.tokens))
    for ref in target.admit(decode, blobs.keys()).missing:
        view = target.block_view(ref.group, ref.block)
        view[:] = b"\xff" * len(view)
    assert target.hand_over("r")
    target.step()
    assert_idle(target)
    assert target.admit(decode).local_tokens == 0
    assert not any(pool.isnan().any() for pool in target._cache.storage.tensors)


# -- around it --------------------------------------------------------------------------


def test_who_is_not_here_is_not_handed_over() -> None:
    engine = engine_of()
    assert not engine.hand_over("r")
    run(engine, request_of(5))
    assert not engine.hand_over("r")
    assert not engine.has_work


def test_neighbours_go_on_and_outputs_of_those_that_left_come_first() -> None:
    engine = engine_of()
    for name in "abc":
        engine.admit(replace(request_of(5), request_id=name))
        engine.start(name)
    results = drive(engine, until=lambda r: len(r) == 3)
    assert engine.hand_over("b")
    assert engine.status().running == 2
    outputs = engine.step()
    assert [output.request_id for output in outputs] == ["b", "a", "c"]
    engine.release_exports(outputs[0].exports)
    for output in outputs[1:]:
        results[output.request_id].sampled += output.tokens
    drive(engine, results)
    for name in "ac":
        assert results[name].tokens == MODEL.greedy(range(5), MAX_TOKENS)
    status = engine.status()
    assert (status.handed_over, status.preempted) == (1, 0)
    assert_idle(engine)


def test_its_id_is_taken_until_its_output_came() -> None:
    engine = engine_of()
    engine.admit(request_of(5))
    engine.hand_over("r")
    with pytest.raises(DuplicateRequest):
        engine.admit(request_of(5))
    engine.step()
    assert run(engine, request_of(5)).tokens == MODEL.greedy(range(5), MAX_TOKENS)


def test_a_cancel_before_the_output_frees_the_exports() -> None:
    engine = engine_of()
    engine.admit(request_of(9))
    engine.start("r")
    engine.step()
    engine.hand_over("r")
    assert engine.status().groups[0].used_blocks == 3
    engine.cancel("r")
    assert not engine.has_work
    assert engine.step() == []
    assert_idle(engine)


def test_check_integrity_finds_exports_that_nobody_pins() -> None:
    engine = engine_of()
    engine.admit(request_of(9))
    engine.start("r")
    engine.step()
    engine.hand_over("r")
    engine.release_exports(engine._departures.exports[:1])
    with pytest.raises(IntegrityError, match="not pinned"):
        engine.check_integrity()
