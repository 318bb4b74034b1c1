"""The engine on tiny random models in float32: however a text is computed, it is one text.

The reference is the simplest run: alone, the prompt in one step, nothing cached.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.loader import LoadedModel, load_model
from engine.types import Request, SamplingParams
from tests.support.engines import (
    Result,
    assert_idle,
    drive,
    import_blocks,
    read_blocks,
    run,
    run_exporting,
)
from tests.support.models import tiny_gemma3, tiny_llama

NEW = 6
BLOCK = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=20)
SEEDED = SamplingParams(seed=11, top_p=0.95, max_tokens=NEW, ignore_eos=True, logprobs=20)

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    directory: Path = tmp_path_factory.mktemp(request.param)
    save = {"llama": tiny_llama, "gemma3": tiny_gemma3}[request.param]
    # Untied: a random tied model repeats its last token, whatever its KV holds.
    return load_model(save(directory, tied=False), dtype=torch.float32)


@pytest.fixture
def make_engine(model: LoadedModel) -> MakeEngine:
    def make(*, max_step_tokens: int = 512, kv_bytes: int = 8 << 20) -> Engine:
        config = EngineConfig(
            block_size=BLOCK, kv_bytes=kv_bytes, max_sequences=8, checkpoint_blocks=4,
            max_step_tokens=max_step_tokens, dtype=torch.float32,
        )  # fmt: skip
        return Engine(model, config)

    return make


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 384, (length,), generator=generator).tolist())


def assert_same(result: Result, reference: Result, skip: int = 0) -> None:
    """Equal tokens, and logits as far as the 20 best show them."""
    assert result.tokens == reference.tokens[skip:]
    for token, other in zip(result.sampled, reference.sampled[skip:], strict=True):
        assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
        ours, theirs = dict(token.top), dict(other.top)
        common = ours.keys() & theirs.keys()
        assert len(common) >= 19
        assert all(ours[id_] == pytest.approx(theirs[id_], abs=1e-4) for id_ in common)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("chunk", [8, 11, 29])
def test_chunked_at_odd_sizes(make_engine: MakeEngine, params: SamplingParams, chunk: int) -> None:
    for length in (1, 7, 8, 9, 24, 25, 61):
        request = Request("r", prompt_of(length), params)
        engine = make_engine(max_step_tokens=chunk)
        assert_same(run(engine, request), run(make_engine(), request))
        assert_idle(engine)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_ragged_batches(make_engine: MakeEngine, params: SamplingParams) -> None:
    lengths = (1, 5, 8, 17, 24, 33, 60)
    requests = [
        Request(f"r{i}", prompt_of(length, seed=i), params) for i, length in enumerate(lengths)
    ]
    engine = make_engine(max_step_tokens=40)
    for request in requests:
        engine.admit(request)
        engine.start(request.request_id)
    together = drive(engine)
    for request in requests:
        assert_same(together[request.request_id], run(make_engine(), request))
    assert_idle(engine)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_prefix_hit_at_every_boundary(make_engine: MakeEngine, params: SamplingParams) -> None:
    prompt = prompt_of(70)
    for shared in range(BLOCK, 65, BLOCK):
        engine = make_engine()
        run(engine, Request("first", prompt[:shared], params))
        request = Request("second", prompt, params)
        assert engine.admit(request).cached_tokens in (shared, shared - BLOCK)
        engine.start("second")
        assert_same(drive(engine)["second"], run(make_engine(), request))
        assert_idle(engine)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("length", [1, 2, *range(17, 17 + 2 * BLOCK), 50, 57])
def test_a_handoff_at_every_length_within_a_block(
    make_engine: MakeEngine, params: SamplingParams, length: int
) -> None:
    prompt = prompt_of(length)
    whole = run(make_engine(), Request("whole", prompt, params))
    prefill = Request("prefill", prompt, params, hand_over_after=1, export=True)
    first, blobs = run_exporting(make_engine(), prefill)
    target = make_engine()
    decode = Request("decode", prompt, params, emitted=tuple(first.tokens))
    assert import_blocks(target, decode, blobs) == length
    assert_same(first, Result(whole.sampled[:1]))
    assert_same(drive(target)["decode"], whole, skip=1)
    assert_idle(target)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("given", ["all", "none"])
def test_a_sequence_that_leaves_at_any_step(
    make_engine: MakeEngine, params: SamplingParams, given: str
) -> None:
    prompt = prompt_of(45)
    whole = run(make_engine(), Request("r", prompt, params))
    for steps in range(4 + NEW):
        source, target, begun = make_engine(max_step_tokens=11), make_engine(), Result()
        source.admit(Request("r", prompt, params))
        source.start("r")
        for _ in range(steps):
            begun.sampled += source.step()[0].tokens
        source.hand_over("r")
        (last,) = source.step()
        blobs = read_blocks(source, last.exports) if given == "all" else {}
        resumed = Request("r", prompt, params, emitted=tuple(begun.tokens))
        found = import_blocks(target, resumed, blobs)
        if given == "all":
            assert found == (last.kv_tokens if begun.tokens else last.kv_tokens // BLOCK * BLOCK)
        rest = drive(target)["r"]
        assert_same(Result(begun.sampled + rest.sampled), whole)


def test_lost_blobs_are_computed_again(make_engine: MakeEngine) -> None:
    prompt = prompt_of(45)
    whole = run(make_engine(), Request("whole", prompt, GREEDY))
    prefill = Request("prefill", prompt, GREEDY, hand_over_after=1, export=True)
    first, blobs = run_exporting(make_engine(), prefill)
    for lost in [*([name] for name in blobs), blobs]:
        target = make_engine()
        decode = Request("decode", prompt, GREEDY, emitted=tuple(first.tokens))
        import_blocks(target, decode, blobs, lost=lost)
        assert_same(drive(target)["decode"], whole, skip=1)
        assert_idle(target)


def test_garbage_of_a_cancelled_fetch_does_not_reach_a_neighbour(make_engine: MakeEngine) -> None:
    """Slots behind a sequence's end are masked, and must not hold NaN all the same."""
    prompt = prompt_of(45)
    prefill = Request("prefill", prompt, GREEDY, hand_over_after=1, export=True)
    first, blobs = run_exporting(make_engine(), prefill)
    engine = make_engine()
    decode = Request("decode", prompt, GREEDY, emitted=tuple(first.tokens))
    for ref in engine.admit(decode, blobs.keys()).missing:
        view = engine.block_view(ref.group, ref.block)
        view[:] = b"\xff" * len(view)
    engine.cancel("decode")
    other = Request("other", prompt_of(13, seed=5), GREEDY)
    assert_same(run(engine, other), run(make_engine(), other))


def test_two_computations_of_one_prompt_export_equal_tokens_kv(make_engine: MakeEngine) -> None:
    """Chunked and whole, blobs of one name agree within rounding."""
    prefill = Request("r", prompt_of(45), GREEDY, hand_over_after=1, export=True)
    _, whole = run_exporting(make_engine(), prefill)
    _, chunked = run_exporting(make_engine(max_step_tokens=11), prefill)
    assert whole.keys() == chunked.keys()
    for name, data in whole.items():
        ours = torch.frombuffer(bytearray(data), dtype=torch.float32)
        theirs = torch.frombuffer(bytearray(chunked[name]), dtype=torch.float32)
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("chunk", [11, 512])
def test_prompt_logprobs_are_those_that_a_token_there_would_be_drawn_with(
    make_engine: MakeEngine, chunk: int
) -> None:
    prompt = prompt_of(33)
    engine = make_engine(max_step_tokens=chunk)
    run(engine, Request("before", prompt, GREEDY))
    params = replace(GREEDY, prompt_logprobs=20)
    result = run(engine, Request("r", prompt, params))
    assert_same(result, run(make_engine(), Request("r", prompt, GREEDY)))
    reported = result.prompt_logprobs
    assert [token.token_id for token in reported] == list(prompt[1:])
    for place in (1, 2, 8, 9, 24, 32):
        drawn = run(make_engine(), Request("part", prompt[:place], replace(GREEDY, max_tokens=1)))
        ours, theirs = dict(reported[place - 1].top), dict(drawn.sampled[0].top)
        common = ours.keys() & theirs.keys()
        assert len(common) >= 19
        assert all(ours[id_] == pytest.approx(theirs[id_], abs=1e-4) for id_ in common)
        own = prompt[place]
        assert reported[place - 1].logprob == pytest.approx(theirs.get(own, -99.0), abs=1e-4) or (
            own not in theirs and reported[place - 1].logprob <= min(theirs.values()) + 1e-4
        )
    assert_idle(engine)


def test_the_context_limit_of_a_real_model(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.limits.context_tokens == 512
    assert len(run(engine, Request("r", prompt_of(512 - NEW), GREEDY)).tokens) == NEW
    assert_idle(engine)


def test_bfloat16_blocks_are_copied_as_bytes(model: LoadedModel, tmp_path: Path) -> None:
    save = tiny_gemma3 if model.config.architecture == "gemma3" else tiny_llama
    half = load_model(save(tmp_path), dtype=torch.bfloat16)
    config = EngineConfig(block_size=BLOCK, kv_bytes=4 << 20, max_sequences=4)
    source, target = Engine(half, config), Engine(half, config)
    prefill = Request("p", prompt_of(45), GREEDY, hand_over_after=1, export=True)
    whole = run(Engine(half, config), Request("whole", prefill.prompt, GREEDY))
    first, blobs = run_exporting(source, prefill)
    assert all(
        len(blobs[ref.name]) == source.layout.block_bytes(ref.group) for ref in first.exports
    )
    decode = Request("d", prefill.prompt, GREEDY, emitted=tuple(first.tokens))
    admission = target.admit(decode, blobs.keys())
    for ref in admission.missing:
        target.block_view(ref.group, ref.block)[:] = blobs[ref.name]
    assert read_blocks(target, admission.missing) == {
        ref.name: blobs[ref.name] for ref in admission.missing
    }
    target.start("d", blobs.keys())
    assert first.tokens + drive(target)["d"].tokens == whole.tokens
