"""Sampling against a plain reference that sorts everything, and at the edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampler import SampleRow, leading, report, sample
from engine.types import SamplingParams
from tests.support.sampling import draws, kept

torch.set_num_threads(1)


# Steps of 1/8 make ties common and every comparison of logits exact.
some_logits = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=60)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 59, 10_000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.513, 0.9, 0.977, 1.0]),
    min_p=st.sampled_from([0.0, 1e-3, 0.0512, 0.31, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.just(100),
)


@settings(max_examples=300, deadline=None)
@given(some_logits, some_params, st.integers(0, 3), st.integers(0, 99))
def test_draws_what_the_reference_draws(
    logits: list[float], params: SamplingParams, choice: int, position: int
) -> None:
    row = SampleRow(params, choice, position)
    token = sample(torch.tensor([logits]), [row])[0][0].token_id
    assert draws(token, logits, params, choice, output=[-1] * position)


@settings(max_examples=100, deadline=None)
@given(some_logits, st.lists(some_params, min_size=2, max_size=5), st.randoms())
def test_a_row_draws_the_same_alone_and_in_any_batch(logits, many, random) -> None:
    rows = [SampleRow(params, 0, position) for position, params in enumerate(many)]
    matrix = torch.tensor([random.sample(logits, len(logits)) for _ in rows])
    together = sample(matrix, rows)
    backwards = sample(matrix.flip(0), rows[::-1])[::-1]
    alone = [sample(matrix[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert together == backwards == alone


@pytest.mark.parametrize("count", [1, 3, 7, 100, 5_000])
def test_leading_ranks_by_logit_then_id(count: int) -> None:
    logits = torch.randint(-30, 30, (2_000,)).float()
    expected = sorted(range(2_000), key=lambda i: (-logits[i].item(), i))[:count]
    assert leading(logits, count).tolist() == expected


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = torch.zeros(3, 50_000)
    logits[0, [41_234, 7, 49_999]] = 3.0
    logits[1, 30_000:] = 1.0
    rows = [SampleRow(SamplingParams(temperature=0), 0, 0) for _ in range(3)]
    assert [token.token_id for (token,) in sample(logits, rows)] == [7, 30_000, 0]


def test_top_k_one_is_greedy_with_ties_too() -> None:
    logits = torch.zeros(1, 1_000)
    logits[0, [400, 77, 900]] = 2.0
    for seed in range(50):
        row = SampleRow(SamplingParams(top_k=1, seed=seed), 0, 0)
        assert sample(logits, [row])[0][0].token_id == 77


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 6.0])
def test_nucleus_of_a_large_vocabulary(top_p: float, scale: float) -> None:
    """Flat distributions need more than the first guesses of candidates, peaked ones fewer."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(20_000, generator=generator) * scale
    params = SamplingParams(top_p=top_p)
    whole = set(kept(logits.tolist(), params))
    drawn = {
        sample(logits[None], [SampleRow(params, 0, position)])[0][0].token_id
        for position in range(60)
    }
    slack = 20 if scale < 0.1 else 1  # rounding of a nearly flat distribution's sums
    allowed = set(sorted(range(20_000), key=lambda i: (-logits[i].item(), i))[: len(whole) + slack])
    assert drawn <= allowed
    assert len(drawn) > 1 or len(whole) < 5


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.2, 0.2, 0.1])
    logits = probabilities.log()[None]
    counts = [0] * 4
    for position in range(4_000):
        row = SampleRow(SamplingParams(seed=9), 0, position)
        counts[sample(logits, [row])[0][0].token_id] += 1
    for count, probability in zip(counts, probabilities.tolist(), strict=True):
        assert abs(count / 4_000 - probability) < 0.04


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-6),
        SamplingParams(temperature=1e-300),
        SamplingParams(top_p=1e-300),
        SamplingParams(min_p=1.0),
        SamplingParams(top_k=1),
    ],
)
def test_extreme_parameters_leave_the_most_probable_token(params: SamplingParams) -> None:
    logits = torch.randn(1, 5_000, generator=torch.Generator().manual_seed(2)) * 20
    assert sample(logits, [SampleRow(params, 0, 0)])[0][0].token_id == int(logits.argmax())


def test_temperature_100_still_draws_from_everything() -> None:
    logits = torch.tensor([[10.0, 0.0, -10.0]])
    rows = [SampleRow(SamplingParams(temperature=100, top_k=9), 0, i) for i in range(200)]
    drawn = [sample(logits, [row])[0][0].token_id for row in rows]
    assert {0, 1, 2} == set(drawn)


def test_masked_tokens_are_never_drawn_and_log_probabilities_stay_the_models() -> None:
    logits = torch.tensor([[5.0, 4.0, 1.0]])
    for params in (SamplingParams(temperature=0, logprobs=2), SamplingParams(logprobs=2)):
        for position in range(30):
            row = SampleRow(params, 0, position, frozenset({0}))
            token = sample(logits, [row])[0][0]
            assert token.token_id != 0
            expected = torch.log_softmax(logits[0], 0)
            assert token.logprob == pytest.approx(float(expected[token.token_id]))
            assert [id_ for id_, _ in token.top] == [0, 1]


def test_log_probabilities_ignore_temperature_and_filters() -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(3))
    expected = torch.log_softmax(logits[0], 0)
    params = SamplingParams(temperature=0.3, top_k=2, logprobs=20)
    token = sample(logits, [SampleRow(params, 0, 0)])[0][0]
    assert token.logprob == pytest.approx(float(expected[token.token_id]))
    assert len(token.top) == 20
    assert [p for _, p in token.top] == pytest.approx(sorted(expected.tolist())[::-1][:20])


def test_logprobs_zero_reports_the_sampled_token_alone() -> None:
    token = sample(torch.randn(1, 9), [SampleRow(SamplingParams(logprobs=0), 0, 0)])[0][0]
    assert token.logprob is not None
    assert token.top == ()


def test_logprobs_beyond_the_vocabulary_report_all_of_it() -> None:
    token = sample(torch.randn(1, 3), [SampleRow(SamplingParams(logprobs=20), 0, 0)])[0][0]
    assert sorted(id_ for id_, _ in token.top) == [0, 1, 2]


def test_choices_of_one_seed_differ_and_repeat() -> None:
    logits = torch.zeros(1, 1_000)

    def text(choice: int) -> list[int]:
        return [
            sample(logits, [SampleRow(SamplingParams(seed=4), choice, position)])[0][0].token_id
            for position in range(8)
        ]

    texts = [text(choice) for choice in range(4)]
    assert len({tuple(one) for one in texts}) == 4
    assert texts == [text(choice) for choice in range(4)]


def test_logits_are_left_as_they_are() -> None:
    logits = torch.randn(1, 50)
    before = logits.clone()
    sample(logits, [SampleRow(SamplingParams(top_p=0.5, logprobs=3), 0, 0, frozenset({1}))])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("count", [0, 1, 3, 6, 20])
def test_report_gives_each_row_its_own_token_and_the_leading_ones(count: int) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(-3, 3, (40, 6), generator=generator).float()
    logits[20:] = torch.randn(20, 6, generator=generator)
    tokens = [row % 6 for row in range(40)]
    reported = report(logits, tokens, count)
    for row, token in enumerate(reported):
        logprobs = torch.log_softmax(logits[row], dim=-1)
        ids = leading(logits[row], count).tolist()
        assert (token.token_id, [id_ for id_, _ in token.top]) == (tokens[row], ids)
        assert token.logprob == pytest.approx(float(logprobs[tokens[row]]))
        assert [value for _, value in token.top] == pytest.approx(logprobs[ids].tolist())


def test_several_choices_of_a_row_are_those_of_rows_of_their_own() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(3))
    for params in (SamplingParams(seed=4, top_p=0.9, logprobs=2), SamplingParams(temperature=0)):
        (together,) = sample(logits, [SampleRow(params, 2, 5, choices=7)])
        alone = [sample(logits, [SampleRow(params, 2 + i, 5)])[0][0] for i in range(7)]
        assert together == alone
