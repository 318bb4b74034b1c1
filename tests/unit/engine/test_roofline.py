"""The least work of a step, against what torch counts and against sums by hand."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from engine.config import EngineConfig
from engine.engine import Engine
from engine.peaks import measure_peaks
from engine.steps import StepShape, pairs
from engine.types import Request
from tests.support import models
from tests.support.engines import fake_engine, greedy

FEW_PERCENT = 0.03


def engine_of(model, directory, dtype=torch.float32):
    path = models.save_model(model, directory)
    return Engine.load(path, EngineConfig(dtype=dtype, kv_bytes=1 << 20, max_sequences=2))


@pytest.fixture(scope="module")
def llama():
    return models.llama_model()


@pytest.fixture(scope="module")
def llama_engine(llama, tmp_path_factory):
    return engine_of(llama, tmp_path_factory.mktemp("llama"))


def counted(model, tokens):
    """Operations by torch's own count, which knows the plain form of attention."""
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(tokens)[None], use_cache=False)
    return counter.get_total_flops()


def test_operations_of_a_dense_model_are_those_that_torch_counts(llama, llama_engine):
    prompt = 40
    flops = counted(llama, prompt)
    # Transformers computes all logits, and attention over the whole square.
    shape = StepShape(prompt, prompt * prompt, 0, 0, logits_rows=prompt)
    assert llama_engine.roofline.of(shape).flops == pytest.approx(flops, rel=FEW_PERCENT)
    more = counted(llama, prompt + 1) - flops
    decode = StepShape(0, 0, 1, 2 * prompt + 1, logits_rows=1)
    assert llama_engine.roofline.of(decode).flops == pytest.approx(more, rel=FEW_PERCENT)


def test_bytes_of_a_decode_step_by_hand(llama, llama_engine):
    """Three layers of 64, 4 heads and 2 KV heads of 32, 96 inside; 384 tokens; four bytes each."""
    attention = 64 * (4 + 2 + 2) * 32 + 4 * 32 * 64
    feed_forward = 3 * 64 * 96
    weights = 3 * (attention + feed_forward) + 384 * 64
    for sequences, context in ((1, 10), (5, 1000)):
        kv = 3 * 2 * 2 * 32 * (context + sequences)
        shape = StepShape(0, 0, sequences, context, logits_rows=sequences)
        work = llama_engine.roofline.of(shape)
        assert work.bytes == 4 * (weights + kv + sequences * 64)
    one = llama_engine.roofline.of(StepShape(0, 0, 1, 10, logits_rows=1))
    assert one.flops == 2 * weights + 4 * 3 * 4 * 32 * 10


def test_a_chunk_of_a_prompt_reads_what_is_before_it(llama_engine):
    roofline = llama_engine.roofline
    first = roofline.of(StepShape(16, pairs(0, 16), 0, 0))
    later = roofline.of(StepShape(16, pairs(100, 16), 0, 0))
    token = 3 * 2 * 2 * 32 * 4
    assert later.bytes - first.bytes == pytest.approx(100 * token)
    assert later.flops - first.flops == pytest.approx(4 * 3 * 4 * 32 * 16 * 100)


def test_prompts_without_a_sample_need_no_head(llama_engine):
    shape = StepShape(16, pairs(0, 16), 0, 0)
    sampling = replace(shape, logits_rows=1)
    roofline = llama_engine.roofline
    assert roofline.of(sampling).bytes - roofline.of(shape).bytes == 384 * 64 * 4
    assert roofline.of(sampling).flops - roofline.of(shape).flops == 2 * 384 * 64


def test_several_prompts_are_no_long_one(llama_engine):
    work = llama_engine.roofline.of(StepShape(32, 2 * pairs(0, 16), 0, 0))
    token = 3 * 2 * 2 * 32 * 4
    alone = llama_engine.roofline.of(StepShape(16, pairs(0, 16), 0, 0))
    assert work.flops == pytest.approx(2 * alone.flops)
    assert work.bytes == pytest.approx(alone.bytes + 16 * (2 * token + 64 * 4))


def test_a_window_bounds_what_is_read(tmp_path):
    engine = engine_of(models.mistral_model(), tmp_path)
    window, roofline = models.SLIDING_WINDOW, engine.roofline

    def decode(context):
        return roofline.of(StepShape(0, 0, 1, context, logits_rows=1))

    assert decode(window) == decode(200)
    assert decode(window - 1).bytes < decode(window).bytes
    far = roofline.of(StepShape(16, pairs(300, 16), 0, 0))
    assert far == roofline.of(StepShape(16, pairs(200, 16), 0, 0))
    model = roofline.model
    seen = sum(min(position + 1, window) for position in range(8, 40))
    per_pair = 4 * model.layers * model.heads * model.head_dim
    products = 32 * (roofline.of(StepShape(1, 1, 0, 0)).flops - per_pair)
    work = roofline.of(StepShape(32, pairs(8, 32), 0, 0))
    assert work.flops - products == pytest.approx(seen * per_pair)


def test_few_tokens_read_few_experts(tmp_path):
    model = models.qwen3_moe_model()
    engine = engine_of(model, tmp_path)
    config = engine.roofline.model
    experts = config.experts
    expert = len(experts.layers) * 3 * config.hidden_size * experts.intermediate_size * 4

    def weights(tokens):
        work = engine.roofline.of(StepShape(0, 0, tokens, tokens))
        return work.bytes - tokens * (config.hidden_size * 4)

    kv = config.layers * 2 * config.kv_heads * config.head_dim * 4 * 2
    everything = weights(10_000) - 10_000 * kv
    one = weights(1) - kv
    assert everything - one == pytest.approx((experts.count - experts.per_token) * expert)
    # Transformers multiplies with all experts at once, which torch does not count.
    of_experts = 2 * experts.per_token * expert / 4
    decode = engine.roofline.of(StepShape(0, 0, 1, 1, logits_rows=1))
    assert decode.flops - of_experts == pytest.approx(counted(model, 1), rel=FEW_PERCENT)


def test_weights_in_sixteen_bits_are_half_the_bytes(llama, tmp_path, llama_engine):
    engine = engine_of(llama, tmp_path, torch.bfloat16)
    shape = StepShape(0, 0, 1, 10, logits_rows=1)
    assert engine.roofline.of(shape).bytes * 2 == llama_engine.roofline.of(shape).bytes


def test_a_step_tells_its_rows_of_logits():
    engine = fake_engine(max_step_tokens=8)
    engine.admit(Request("a", tuple(range(11)), greedy(2)))
    engine.start("a")
    rows = []
    while engine.has_work:
        engine.step()
        rows.append(engine.last_shape.logits_rows)
    assert rows == [0, 1, 1]


def test_peaks_are_what_a_product_and_a_copy_reach():
    peaks = measure_peaks(torch.float32, "cpu")
    assert 1e8 < peaks.flops_per_second < 1e14
    assert 1e8 < peaks.bytes_per_second < 1e13
