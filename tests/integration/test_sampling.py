"""Sampling parameters over real processes: what they do, and that a handoff changes nothing."""

import itertools
import math

import pytest
import torch
from transformers import Gemma3ForCausalLM

from baton import errors
from baton.client import AsyncClient, Client
from baton.v1 import inference_pb2, sampling_pb2
from services.common import rpc
from services.common.text import TextModel
from tests.support.cluster import Cluster
from tests.support.prompts import prompt_of

GREEDY = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 24}
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def shared_aggregated(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("aggregated")
    with Cluster(model, aggregated=True, run_dir=directory) as running:
        yield running


@pytest.fixture
def aggregated(shared_aggregated):
    yield shared_aggregated
    shared_aggregated.assert_clean()


@pytest.fixture(scope="module")
def text_model(model):
    return TextModel.load(model)


async def complete(cluster, prompt, **options):
    async with AsyncClient(cluster.address) as client:
        return await client.complete(prompt, **options)


CHANGES = [
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"logit_bias": {40: 6.0, 41: 6.0, 42: -100.0}},
    {
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "logit_bias": {77: 4.0}, "min_tokens": 5, "top_p": 0.9, "temperature": 0.8,
    },
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: ",".join(change))
async def test_what_changes_the_logits_is_the_same_everywhere(
    cluster, aggregated, reference, change
):
    """On both sides of the handoff and without one, token for token the engine's own."""
    changed = 0
    for length in (1, 17, 60):
        prompt, options = prompt_of(length, 3), GREEDY | {"seed": 9} | change
        inside = dict(options)
        if "logit_bias" in change:
            inside["logit_bias"] = tuple(sorted(change["logit_bias"].items()))
        expected = tuple(reference.generate(prompt, **inside))
        assert (await complete(cluster, prompt, **options)).token_ids == expected
        assert (await complete(aggregated, prompt, **options)).token_ids == expected
        changed += expected != tuple(reference.generate(prompt, **GREEDY, seed=9))
    assert changed > 0


async def test_a_bias_can_force_and_forbid(cluster):
    forced = await complete(cluster, prompt_of(9), logit_bias={200: 100.0}, **GREEDY)
    assert set(forced.token_ids) == {200}
    free = await complete(cluster, prompt_of(9), **GREEDY)
    forbidden = free.token_ids[0]
    without = await complete(cluster, prompt_of(9), logit_bias={forbidden: -100.0}, **GREEDY)
    assert forbidden not in without.token_ids


async def test_bad_sequences_never_come(cluster, aggregated, reference):
    """Each pair of the free output in turn: also the one that spans the handoff."""
    prompt = prompt_of(31, 5)
    free = reference.generate(prompt, **GREEDY)
    for index in range(6):
        bad = (tuple(free[index : index + 2]),)
        expected = tuple(reference.generate(prompt, bad_sequences=bad, **GREEDY))
        assert expected[: index + 1] == tuple(free[: index + 1])
        assert bad[0] not in itertools.pairwise(expected)
        for one in (cluster, aggregated):
            whole = await complete(one, prompt, bad_sequences=bad, **GREEDY)
            assert whole.token_ids == expected


async def test_bad_words_are_the_tokenizers_own_tokens(cluster, reference, text_model):
    """Words of a text that the model likes to write; alone, and with a space before."""
    word = "the"
    ways = tuple(tuple(text_model.encode_piece(text)) for text in (word, f" {word}"))
    likes = {token: 30.0 for way in ways for token in way}
    free = await complete(cluster, prompt_of(12), logit_bias=likes, **GREEDY)
    assert word in free.text
    expected = reference.generate(
        prompt_of(12), logit_bias=tuple(sorted(likes.items())), bad_sequences=ways, **GREEDY
    )
    whole = await complete(
        cluster, prompt_of(12), logit_bias=likes, bad_words=[word, word], **GREEDY
    )
    assert whole.token_ids == tuple(expected)
    for way in ways:
        spans = zip(*(whole.token_ids[i:] for i in range(len(way))), strict=False)
        assert way not in spans


@pytest.mark.parametrize("length", [1, 2, 16, 17, 90, 300])
async def test_prompt_log_probabilities_are_transformers(cluster, aggregated, model, length):
    prompt = prompt_of(length, 2)
    other = Gemma3ForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        known = other(torch.tensor([prompt])).logits[0].log_softmax(-1)  # [tokens, vocabulary]
    for one in (cluster, cluster, aggregated):  # twice: the second time it could be cached
        whole = await complete(one, prompt, prompt_logprobs=3, **GREEDY)
        assert whole.prompt.text == ""
        assert [token.id for token in whole.prompt.tokens] == prompt
        assert whole.prompt.tokens[0].logprob is None
        assert whole.usage.cached_tokens == 0
        for row, token in zip(known, whole.prompt.tokens[1:], strict=False):
            assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-4)
            assert [top.logprob for top in token.top] == pytest.approx(
                row.topk(3).values.tolist(), abs=1e-4
            )


async def test_prompt_log_probabilities_change_no_output(cluster, reference):
    for prompt in (prompt_of(1), prompt_of(80)):
        options = GREEDY | {"temperature": 0.8, "seed": 4}
        whole = await complete(cluster, prompt, prompt_logprobs=0, n=2, echo=True, **options)
        for index, choice in enumerate(whole.choices):
            assert choice.token_ids == tuple(reference.generate(prompt, choice=index, **options))
        assert all(not token.top for token in whole.prompt.tokens)


async def test_echo_is_the_prompt_as_the_tokenizer_decodes_it(cluster, aggregated, text_model):
    for one in (cluster, aggregated):
        text = "Once upon a time, häßlich \N{GRINNING FACE}"
        whole = await complete(one, text, echo=True, n=2, seed=1, max_tokens=3)
        ids = text_model.encode(text)
        assert [token.id for token in whole.prompt.tokens] == ids
        assert all(token.logprob is None for token in whole.prompt.tokens)
        assert whole.prompt.text == text_model.decode(ids) == text
        prompt = [2, *prompt_of(20, 6)]
        whole = await complete(one, prompt, echo=True, max_tokens=3)
        assert whole.prompt.text == text_model.decode(prompt)
    assert (await complete(cluster, "Once", max_tokens=2)).prompt is None


def test_the_models_own_defaults_are_told_and_used(tmp_path_factory):
    from tests.support.models import tiny_llama

    directory = tiny_llama(tmp_path_factory.mktemp("model"))
    (directory / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.5, "top_k": 7, "eos_token_id": 1}'
    )
    with Cluster(directory, run_dir=tmp_path_factory.mktemp("cluster")) as running:
        with Client(running.address) as client:
            told = client.model().default_sampling
            assert (told.temperature, told.top_k, told.top_p) == (0.5, 7, None)
            said = {"temperature": 0.5, "top_k": 7}
            options = {"seed": 3, "max_tokens": 20, "ignore_eos": True}
            by_default = client.complete(prompt_of(20), **options)
            assert by_default.choices == client.complete(prompt_of(20), **said, **options).choices
            other = client.complete(prompt_of(20), temperature=5.0, top_k=0, **options)
            assert by_default.choices != other.choices
        running.assert_clean()


def request(sampling=None, **fields):
    return inference_pb2.GenerateRequest(
        text="a", sampling=sampling_pb2.SamplingParams(**(sampling or {})), **fields
    )


def sequences(*many):
    return [sampling_pb2.TokenSequence(token_ids=ids) for ids in many]


BAD = [
    (request(n=17), "n"),
    (request(n=4_000_000_000), "n"),
    (request(best_of=2), "best_of"),
    (request(n=2, best_of=3), "best_of"),
    (request(bad_words=["a"] * 33), "bad_words"),
    (request(bad_words=["a", ""]), "bad_words[1]"),
    (request(bad_words=["a" * 129]), "bad_words[0]"),
    (request(bad_words=["\N{GRINNING FACE}" * 100]), "bad_words[0]"),
    (request({"repetition_penalty": 0.0}), "sampling.repetition_penalty"),
    (request({"repetition_penalty": 11.0}), "sampling.repetition_penalty"),
    (request({"repetition_penalty": NAN}), "sampling.repetition_penalty"),
    (request({"presence_penalty": 2.5}), "sampling.presence_penalty"),
    (request({"presence_penalty": NAN}), "sampling.presence_penalty"),
    (request({"frequency_penalty": -2.5}), "sampling.frequency_penalty"),
    (request({"frequency_penalty": -INF}), "sampling.frequency_penalty"),
    (request({"logit_bias": dict.fromkeys(range(301), 0.0)}), "sampling.logit_bias"),
    (request({"logit_bias": {4_000_000_000: 0.0}}), "sampling.logit_bias[4000000000]"),
    (request({"logit_bias": {5: 101.0}}), "sampling.logit_bias[5]"),
    (request({"logit_bias": {5: NAN}}), "sampling.logit_bias[5]"),
    (request({"bad_sequences": sequences(*[[5]] * 65)}), "sampling.bad_sequences"),
    (request({"bad_sequences": sequences([5], [])}), "sampling.bad_sequences[1]"),
    (request({"bad_sequences": sequences([5] * 65)}), "sampling.bad_sequences[0]"),
    (
        request({"bad_sequences": sequences([5, 4_000_000_000])}),
        "sampling.bad_sequences[0].token_ids[1]",
    ),
    (request({"prompt_logprobs": 21}), "sampling.prompt_logprobs"),
    (request({"prompt_logprobs": 4_000_000_000}), "sampling.prompt_logprobs"),
]


async def test_each_bad_value_is_refused_by_name(cluster):
    async with rpc.channel(cluster.address) as channel:
        call = channel.unary_stream("/baton.v1.InferenceService/Generate")
        for message, field in BAD:
            with pytest.raises(rpc.grpc.aio.AioRpcError) as refused:
                async for _ in call(message.SerializeToString(), timeout=10):
                    pass
            error = errors.from_rpc_error(refused.value)
            assert (type(error), error.field) == (errors.InvalidRequest, field)
            assert error.message.startswith(field)
