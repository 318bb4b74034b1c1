"""failures.md, "Wrong output": the text through the handoff is the uninterrupted engine's."""

import pytest

from baton.client import AsyncClient
from baton.errors import InvalidRequest
from tests.integration.legs import open_legs, tokens_of
from tests.support.prompts import prompt_of


async def collect(client, prompt, **options):
    """All tokens, the text, and the final event."""
    tokens, text, final = [], "", None
    async with client.generate(prompt, **({"temperature": 0.0} | options)) as events:
        async for event in events:
            if hasattr(event, "finish_reason"):
                final = event
            else:
                tokens += event.tokens
                text += event.text
    assert final is not None, "the stream ended without its final event"
    return tokens, text, final


def ids(tokens):
    return [token.id for token in tokens]


async def test_prompts_of_every_length_around_a_block_and_the_window(cluster, reference):
    """One token in all; a block, one less, one more; around the sliding window."""
    block = reference.engine.layout.block_size
    lengths = {1, 2, block - 1, block, block + 1, 2 * block, 3 * block + 1}
    for group in reference.engine.layout.groups:
        if group.window:
            lengths |= {group.window - 1, group.window, group.window + 1, 3 * group.window + 5}
    async with AsyncClient(cluster.address) as client:
        for length in sorted(lengths):
            prompt = prompt_of(length)
            tokens, _, final = await collect(client, prompt, max_tokens=20, ignore_eos=True)
            assert ids(tokens) == reference.generate(prompt, max_tokens=20, ignore_eos=True), length
            assert final.usage.prompt_tokens == length


async def test_the_context_is_usable_to_its_last_token(cluster, reference):
    limit = reference.engine.limits.context_tokens
    async with AsyncClient(cluster.address) as client:
        prompt = prompt_of(limit - 1)
        tokens, _, final = await collect(client, prompt, max_tokens=1, ignore_eos=True)
        assert ids(tokens) == reference.generate(prompt, max_tokens=1, ignore_eos=True)
        assert final.finish_reason == "length"
        prompt = prompt_of(limit - 4)
        tokens, _, _ = await collect(client, prompt, max_tokens=4, ignore_eos=True)
        assert ids(tokens) == reference.generate(prompt, max_tokens=4, ignore_eos=True)
        for length in (limit, limit + 1):
            with pytest.raises(InvalidRequest) as refused:
                await collect(client, prompt_of(length), max_tokens=1)
            assert refused.value.field == "token_ids"
            assert str(limit) in refused.value.message


@pytest.mark.parametrize("count", [1, 2, 3, 17])
async def test_max_tokens_is_exact(cluster, count):
    async with AsyncClient(cluster.address) as client:
        tokens, _, final = await collect(client, prompt_of(30), max_tokens=count, ignore_eos=True)
    assert len(tokens) == count == final.usage.completion_tokens
    assert final.finish_reason == "length"
    assert bool(final.timings.decode_worker) == (count > 1)


async def test_a_first_token_that_ends_the_output_needs_no_decode(cluster, reference):
    prompt = prompt_of(41)
    first = reference.generate(prompt, max_tokens=1, ignore_eos=True)
    before = cluster.worker_status("decode")
    async with AsyncClient(cluster.address) as client:
        tokens, text, final = await collect(
            client, prompt, max_tokens=16, stop_token_ids=first, ignore_eos=True
        )
    assert ids(tokens) == first
    assert text == ""
    assert final.finish_reason == "stop"
    assert final.usage.completion_tokens == 1
    assert final.timings.decode_worker == ""
    after = cluster.worker_status("decode")
    assert after.sampled_tokens == before.sampled_tokens
    assert after.finished_requests == before.finished_requests


async def test_a_stop_token_at_every_position(cluster, reference):
    prompt = prompt_of(25, salt=3)
    whole = reference.generate(prompt, max_tokens=12, ignore_eos=True)
    async with AsyncClient(cluster.address) as client:
        for stop in dict.fromkeys(whole):
            expected = whole[: whole.index(stop) + 1]
            tokens, _, final = await collect(
                client, prompt, max_tokens=12, stop_token_ids=[stop], ignore_eos=True
            )
            assert ids(tokens) == expected
            assert final.finish_reason == "stop"


async def test_min_tokens_counts_over_the_handoff(cluster, reference):
    prompt = prompt_of(25, salt=3)
    stops = reference.generate(prompt, max_tokens=6, ignore_eos=True)
    for minimum in (1, 2, 5):
        expected = reference.generate(
            prompt, max_tokens=12, ignore_eos=True, min_tokens=minimum,
            stop_token_ids=frozenset(stops),
        )  # fmt: skip
        async with AsyncClient(cluster.address) as client:
            tokens, _, _ = await collect(
                client, prompt, max_tokens=12, ignore_eos=True, min_tokens=minimum,
                stop_token_ids=stops,
            )  # fmt: skip
        assert ids(tokens) == expected
        assert len(tokens) >= minimum


async def test_seeded_sampling_is_the_uninterrupted_engines(cluster, reference):
    async with AsyncClient(cluster.address) as client:
        outputs = set()
        for seed in range(6):
            options = {
                "temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": seed,
                "max_tokens": 20, "ignore_eos": True,
            }  # fmt: skip
            prompt = prompt_of(50 + seed)
            tokens, _, final = await collect(client, prompt, **options)
            assert ids(tokens) == reference.generate(prompt, **options)
            assert final.seed == seed
            outputs.add(tuple(ids(tokens)))
    assert len(outputs) == 6


async def test_a_seed_that_the_router_drew_reproduces_the_output(cluster):
    async with AsyncClient(cluster.address) as client:
        options = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
        first, text, final = await collect(client, prompt_of(20), **options)
        again, text_again, _ = await collect(client, prompt_of(20), seed=final.seed, **options)
    assert ids(first) == ids(again)
    assert text == text_again


async def test_logprobs_are_whole_on_both_sides_of_the_handoff(cluster):
    async with AsyncClient(cluster.address) as client:
        tokens, _, _ = await collect(
            client, prompt_of(20), max_tokens=6, ignore_eos=True, logprobs=4
        )
        bare, _, _ = await collect(client, prompt_of(20), max_tokens=6, ignore_eos=True)
    assert len(tokens) == 6
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top) == 4
        assert token.top[0].id == token.id, "greedy takes the most probable token"
        values = [one.logprob for one in token.top]
        assert values == sorted(values, reverse=True)
        assert values[0] == token.logprob
    assert all(token.logprob is None and not token.top for token in bare)


async def test_stop_strings_everywhere_in_the_text(cluster):
    """Every substring of up to four characters as the stop string: across tokens, across the
    handoff (whose boundary is after the first token), at the very start and end."""
    options = {"max_tokens": 12, "ignore_eos": True}
    async with AsyncClient(cluster.address) as client:
        _, whole, _ = await collect(client, prompt_of(33, salt=8), **options)
        assert len(whole) >= 6
        stops = {whole[i : i + n] for i in range(len(whole)) for n in (1, 2, 4)}
        for stop in sorted(stops)[:40]:
            tokens, text, final = await collect(
                client, prompt_of(33, salt=8), stop=[stop], **options
            )
            assert text == whole[: whole.index(stop)], stop
            assert final.finish_reason == "stop"
            assert final.stop_string == stop
            assert final.usage.completion_tokens == len(tokens)
        _, text, final = await collect(
            client, prompt_of(33, salt=8), stop=["never to be found in there"], **options
        )
        assert text == whole
        assert final.finish_reason == "length"
        assert final.stop_string is None


async def test_text_is_the_tokenizers_own(cluster, model):
    """No code point is split: random bytes of a byte-level vocabulary as output."""
    from services.common.text import TextModel

    text_model = TextModel.load(model)
    async with AsyncClient(cluster.address) as client:
        for salt in range(8):
            prompt = prompt_of(12, salt)
            tokens, text, _ = await collect(
                client, prompt, temperature=1.5, seed=salt, max_tokens=48, ignore_eos=True
            )
            detokenizer = text_model.detokenizer(prompt)
            expected = "".join(detokenizer.push(token.id) for token in tokens)
            assert text == expected + detokenizer.finish()


async def test_deltas_never_hold_a_part_of_a_code_point(cluster, model):
    """Output whose whole text has no replacement character streams without one."""
    async with AsyncClient(cluster.address) as client:
        for salt in range(8):
            pieces = []
            async with client.generate(
                prompt_of(10, salt), temperature=1.5, seed=salt, max_tokens=40, ignore_eos=True
            ) as events:
                async for event in events:
                    if hasattr(event, "text"):
                        pieces.append(event.text)
            whole = "".join(pieces)
            for index in range(1, len(pieces)):
                prefix = "".join(pieces[:index])
                assert whole.startswith(prefix)


async def test_a_corrupted_blob_is_never_attended_to(cluster, reference):
    """Flips a byte of every blob of the handoff, in the segment, before decode reads it."""
    prompt = prompt_of(90, salt=17)
    expected = reference.generate(prompt, max_tokens=10, ignore_eos=True)
    before = cluster.transfer_status().corrupt_blobs
    async with open_legs(cluster) as legs:
        response = await (await legs.prefill(prompt, max_tokens=10, ignore_eos=True))
        corrupted = await cluster.corrupt_blobs(
            [blob.name for blob in response.handoff.manifest.blobs]
        )
        assert corrupted > 0
        tokens = await tokens_of(legs.decode(response.handoff))
        await legs.release(response.handoff)
    assert [response.first_tokens[0].token.token_id, *tokens] == expected
    assert cluster.transfer_status().corrupt_blobs > before


async def test_prefix_hits_change_nothing(cluster, reference):
    """The same prompt again, and prompts that share its beginning: cached, and equal."""
    base = prompt_of(160, salt=5)
    async with AsyncClient(cluster.address) as client:
        for length in (160, 160, 159, 130, 100, 64, 33, 160):
            prompt = base[:length] + prompt_of(9, salt=length)
            tokens, _, final = await collect(client, prompt, max_tokens=8, ignore_eos=True)
            assert ids(tokens) == reference.generate(prompt, max_tokens=8, ignore_eos=True)
            assert 0 <= final.usage.cached_tokens < len(prompt)
        assert final.usage.cached_tokens >= 128
