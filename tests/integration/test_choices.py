"""failures.md, 12 and 17: each choice has its own KV, its own noise and its own end."""

import asyncio
import itertools

import pytest
from typer.testing import CliRunner

from baton import errors
from baton.cli import app
from baton.client import AsyncClient
from tests.support.cluster import Cluster
from tests.support.prompts import prompt_of

SAMPLED = {"temperature": 0.9, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared_aggregated(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("aggregated")
    with Cluster(model, aggregated=True, decode=2, run_dir=directory) as running:
        yield running


@pytest.fixture
def aggregated(shared_aggregated):
    yield shared_aggregated
    shared_aggregated.assert_clean()


@pytest.fixture(params=["disaggregated", "aggregated"])
def either(request):
    """Both ways of serving, one after the other."""
    name = "cluster" if request.param == "disaggregated" else "aggregated"
    return request.getfixturevalue(name)


async def complete(cluster, prompt, **options):
    async with AsyncClient(cluster.address) as client:
        return await client.complete(prompt, **options)


def expected(reference, prompt, n, **options):
    return [tuple(tokens) for tokens in reference.generate_choices(prompt, n, **options)]


async def test_four_choices_of_one_seed_differ_and_each_is_the_engines(either, reference):
    for length, seed in ((1, 3), (16, 4), (33, 5), (150, 6)):
        prompt = prompt_of(length, seed)
        options = SAMPLED | {"seed": seed, "max_tokens": 20}
        whole = await complete(either, prompt, n=4, **options)
        outputs = [choice.token_ids for choice in whole.choices]
        assert outputs == expected(reference, prompt, 4, **options)
        assert len(set(outputs)) == 4
        again = await complete(either, prompt, n=4, **options)
        assert again.choices == whole.choices
        alone = await complete(either, prompt, **options)
        assert alone.choices == whole.choices[:1], "the first choice does not see the others"


async def test_choices_are_counted_once_each_and_the_prompt_once(either):
    prompt = prompt_of(70)
    whole = await complete(either, prompt, n=3, seed=1, max_tokens=9, **SAMPLED)
    assert whole.usage.prompt_tokens == 70
    assert whole.usage.completion_tokens == 27
    assert 0 <= whole.usage.cached_tokens < 70
    assert [choice.completion_tokens for choice in whole.completed.choices] == [9, 9, 9]
    assert all(choice.decode_worker for choice in whole.completed.choices)


async def test_the_prompt_is_computed_once(cluster, aggregated):
    """Once by a prefill worker; aggregated, the later choices find it in the first one's cache."""
    prompt = prompt_of(160, salt=77)
    before = cluster.worker_status("prefill").prefilled_tokens
    await complete(cluster, prompt, n=4, seed=1, max_tokens=4, **SAMPLED)
    assert cluster.worker_status("prefill").prefilled_tokens - before <= 160

    def computed():
        names = aggregated.names("decode")
        return sum(aggregated.worker_status(name).prefilled_tokens for name in names)

    before = computed()
    await complete(aggregated, prompt, n=4, seed=1, max_tokens=4, **SAMPLED)
    assert computed() - before < 2 * 160


async def test_each_choice_ends_by_itself(either, reference):
    """A token that only some choices have ends those, wherever it comes."""
    prompt, options = prompt_of(40, 9), SAMPLED | {"seed": 11, "max_tokens": 24}
    outputs = expected(reference, prompt, 4, **options)
    kinds = set()
    for stop in dict.fromkeys(token for output in outputs for token in output[:6]):
        whole = await complete(either, prompt, n=4, stop_token_ids=[stop], **options)
        for choice, output in zip(whole.choices, outputs, strict=True):
            cut = output[: output.index(stop) + 1] if stop in output else output
            assert choice.token_ids == cut
            assert choice.finish_reason == ("stop" if stop in output else "length")
        kinds |= {(choice.finish_reason, len(choice.tokens) == 1) for choice in whole.choices}
    assert {("stop", True), ("stop", False), ("length", False)} <= kinds


async def test_first_tokens_that_all_end_need_no_decode(cluster, reference):
    prompt, options = prompt_of(21), SAMPLED | {"seed": 2, "max_tokens": 8}
    firsts = [output[0] for output in expected(reference, prompt, 4, **options)]
    before = cluster.worker_status("decode").sampled_tokens
    whole = await complete(cluster, prompt, n=4, stop_token_ids=firsts, **options)
    assert [choice.token_ids for choice in whole.choices] == [(first,) for first in firsts]
    assert [choice.decode_worker for choice in whole.completed.choices] == [""] * 4
    assert cluster.worker_status("decode").sampled_tokens == before


async def test_stop_strings_cut_each_choices_own_text(either):
    prompt, options = prompt_of(33, salt=8), SAMPLED | {"seed": 5, "max_tokens": 16}
    whole = await complete(either, prompt, n=3, **options)
    texts = [choice.text for choice in whole.choices]
    assert len(set(texts)) == 3
    for stop in sorted({text[i : i + 2] for text in texts for i in range(0, len(text) - 1, 2)})[:8]:
        cut = await complete(either, prompt, n=3, stop=[stop], **options)
        for choice, text in zip(cut.choices, texts, strict=True):
            assert choice.text == text.partition(stop)[0]
            assert choice.stop_string == (stop if stop in text else None)


async def test_logprobs_and_penalties_of_each_choice(either, reference):
    prompt = prompt_of(50, 4)
    options = SAMPLED | {
        "seed": 8, "max_tokens": 20, "repetition_penalty": 1.3, "presence_penalty": 0.5,
        "frequency_penalty": 0.25, "min_tokens": 3,
    }  # fmt: skip
    whole = await complete(either, prompt, n=3, logprobs=2, **options)
    outputs = [choice.token_ids for choice in whole.choices]
    assert outputs == expected(reference, prompt, 3, **options)
    for choice in whole.choices:
        assert all(token.logprob <= 0 and len(token.top) == 2 for token in choice.tokens)


async def test_both_ways_of_serving_give_the_same(cluster, aggregated):
    for index, length in enumerate((1, 15, 16, 17, 120)):
        options = SAMPLED | {"seed": 70 + index, "max_tokens": 16, "n": 4, "logprobs": 0}
        prompt = prompt_of(length, index)
        split = await complete(cluster, prompt, **options)
        together = await complete(aggregated, prompt, **options)
        assert [choice.token_ids for choice in split.choices] == [
            choice.token_ids for choice in together.choices
        ]
        assert [choice.text for choice in split.choices] == [
            choice.text for choice in together.choices
        ]


async def test_more_choices_than_there_is_room_for_at_a_time(cluster, reference):
    """Sixteen choices, four times: the later ones wait for room, none for ever."""
    prompt, options = prompt_of(30, 2), SAMPLED | {"max_tokens": 24}
    together = await asyncio.gather(
        *(complete(cluster, prompt, n=16, seed=seed, **options) for seed in range(4))
    )
    for seed, whole in enumerate(together):
        assert [choice.token_ids for choice in whole.choices] == expected(
            reference, prompt, 16, seed=seed, **options
        )


async def test_choices_stream_side_by_side(either):
    order = []
    async with (
        AsyncClient(either.address) as client,
        client.generate(prompt_of(20), n=3, seed=1, max_tokens=300, **SAMPLED) as stream,
    ):
        async for event in stream:
            if not hasattr(event, "finish_reason"):
                order += [event.choice for _ in event.tokens]
    assert [order.count(index) for index in range(3)] == [300] * 3
    first_end = min(len(order) - 1 - order[::-1].index(index) for index in range(3))
    assert set(order[:first_end]) == {0, 1, 2}, "each begins before any has ended"


async def test_a_client_that_leaves_frees_every_choice(either):
    for seen in (0, 1, 2, 5, 30):
        async with (
            AsyncClient(either.address) as client,
            client.generate(prompt_of(90), n=5, seed=1, max_tokens=300, **SAMPLED) as stream,
        ):
            for _ in range(seen):
                await anext(stream)
        either.assert_clean()


def test_the_command_line_prints_each_choice(cluster):
    def run(*options):
        command = ["generate", f"--address={cluster.address}", "Once upon", "--seed=1", *options]
        return CliRunner().invoke(app, [*command, "--max-tokens=6", "--ignore-eos"])

    whole = cluster.client.complete(
        "Once upon", n=2, seed=1, temperature=0.7, max_tokens=6, ignore_eos=True
    )
    shown = run("--n=2", "--echo")
    assert shown.exit_code == 0
    assert shown.output == "".join(
        f"[{index}] Once upon{choice.text}\n" for index, choice in enumerate(whole.choices)
    )
    refused = run("--n=2", "--best-of=3")
    assert refused.exit_code == 1
    assert "best_of: 3 is more than n, which is 2" in refused.output


async def test_a_deadline_frees_every_choice(cluster):
    with pytest.raises(errors.DeadlineExceeded):
        await complete(cluster, prompt_of(60), n=8, seed=1, max_tokens=400, timeout=0.3, **SAMPLED)


def test_a_decode_worker_that_dies_is_replaced_for_its_choices(aggregated, reference):
    """Every choice goes on elsewhere, or again there; no token twice, none missing."""
    prompt, options = prompt_of(40, 6), SAMPLED | {"seed": 31, "max_tokens": 400}
    with aggregated.client.generate(prompt, n=4, **options) as stream:
        seen = list(itertools.islice(stream, 40))
        busy = [name for name in aggregated.names("decode") if works(aggregated, name)]
        assert busy
        aggregated.kill(busy[0])
        seen += stream
    tokens = [[], [], [], []]
    for delta in seen[:-1]:
        tokens[delta.choice] += [token.id for token in delta.tokens]
    assert [tuple(one) for one in tokens] == expected(reference, prompt, 4, **options)
    assert seen[-1].timings.decode_attempts > 1
    aggregated.start(busy[0])
    aggregated.wait_ready(30.0)


def works(cluster, name):
    return cluster.worker_status(name).running_sequences > 0
