"""The sampler on scores made by hand, against plain one-row references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.router.protocol.messages import SamplingParams
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow
from slipstream.workers.engine.plan.token_counts import TokenCounts
from slipstream.workers.engine.sampling.sampler import NUCLEUS_CANDIDATES, Sampler, uniform

CPU = torch.device("cpu")


def row(
    position: int = 0, *, masked: tuple[int, ...] = (), counts: TokenCounts | None = None, **params: Any
) -> SamplingRow:
    return SamplingRow(SamplingParams(max_tokens=100, **params), position, counts, masked)


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> SampledTokens:
    return Sampler(logits.shape[1], CPU).sample(logits.clone(), rows)


def ids(sampled: SampledTokens) -> list[int]:
    assert None not in sampled.token_ids
    return [token_id for token_id in sampled.token_ids if token_id is not None]


def draw_many(scores: torch.Tensor, num_draws: int, **params: Any) -> NDArray[np.int64]:
    """How often each token is drawn from one row of scores at positions 0 .. num_draws of one seed."""
    rows = [row(position, **params) for position in range(num_draws)]
    drawn = ids(sample(scores.expand(num_draws, -1), rows))
    return np.bincount(drawn, minlength=len(scores))


def plain_distribution(
    scores: torch.Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Token by token, as the documentation of these parameters describes them."""
    x = [s / temperature for s in scores.double().tolist()]
    probs = [math.exp(v - max(x)) for v in x]
    ranked = sorted(range(len(x)), key=lambda i: (-probs[i], i))
    ranked = [i for i in ranked if probs[i] >= min_p * probs[ranked[0]]]
    if top_k:
        ranked = ranked[:top_k]
    kept: list[int] = []
    total, mass = sum(probs[i] for i in ranked), 0.0
    for i in ranked:
        if kept and mass >= top_p * total:
            break
        kept.append(i)
        mass += probs[i]
    result = np.zeros(len(x))
    result[kept] = [probs[i] / mass for i in kept]
    return result


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.8},
    {"top_k": 12, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
    {"top_p": 0.01},
    {"top_k": 1},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_follow_the_distribution(filters: dict[str, Any]) -> None:
    """Chi-square at a fixed seed; tokens that are filtered out never come."""
    scores = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 2
    num_draws = 20_000
    counts = draw_many(scores, num_draws, seed=7, **filters)
    expected = plain_distribution(scores, **filters) * num_draws
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    vocab_size=st.integers(1, 400),
    top_k=st.integers(0, 420),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    levels=st.sampled_from([1, 3, 100_000]),
)
def test_token_kept_and_token_drawn_are_those_of_the_plain_reference(
    data: st.DataObject, vocab_size: int, top_k: int, top_p: float, min_p: float, levels: int
) -> None:
    """Few `levels` make many ties and flat tails, where looking at the best candidates alone does not suffice."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    scores = torch.randint(0, levels, (vocab_size,), generator=generator) / levels * 8
    filters: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    seed = data.draw(st.integers(-(2**63), 2**63 - 1))
    distribution = plain_distribution(scores, **filters)
    cumulated = np.cumsum(distribution)
    for position in range(4):
        [token_id] = ids(sample(scores[None], [row(position, seed=seed, **filters)]))
        u = uniform(seed, position)
        # One step of rounding to either side of the drawn token's share of [0, 1).
        assert distribution[token_id] > 0 or np.isclose(cumulated, top_p, atol=1e-6).any()
        assert cumulated[token_id] - distribution[token_id] - 1e-5 <= u <= cumulated[token_id] + 1e-5


def test_nucleus_wider_than_the_candidates_is_found() -> None:
    scores = torch.zeros(4 * NUCLEUS_CANDIDATES)
    drawn = np.flatnonzero(draw_many(scores, 1000, top_p=0.75, seed=1))
    assert 2.9 * NUCLEUS_CANDIDATES < drawn.max() < 3 * NUCLEUS_CANDIDATES


@pytest.mark.parametrize("vocab_size", [2049, 4096, 5000])
def test_draws_from_a_large_vocabulary_are_the_inverse_of_the_cumulated_probabilities(vocab_size: int) -> None:
    """Scores of very different size, most of them too small to matter and whole runs of them impossible."""
    scores = torch.randn(vocab_size, generator=torch.Generator().manual_seed(6)) * 12
    scores[300:1200] = float("-inf")
    probs = torch.softmax(scores.double(), dim=0).numpy()
    cumulated = np.cumsum(probs)
    drawn = ids(sample(scores.expand(300, -1), [row(i, seed=8) for i in range(300)]))
    for position, token_id in enumerate(drawn):
        assert probs[token_id] > 0
        u = uniform(8, position)
        assert cumulated[token_id] - probs[token_id] - 1e-6 <= u <= cumulated[token_id] + 1e-6


def test_tie_at_the_edge_goes_to_the_lower_token_ids_in_any_batch() -> None:
    scores = torch.zeros(1000)
    scores[500] = 1.0
    for others in ([], [row(top_k=700)], [row(top_k=3), row(top_p=0.9)]):
        rows = [row(i, top_k=4, seed=5) for i in range(100)] + others
        assert set(ids(sample(scores.expand(len(rows), -1), rows))[:100]) == {0, 1, 2, 500}


def test_draw_depends_on_seed_and_position_alone() -> None:
    logits = torch.randn(60, 500, generator=torch.Generator().manual_seed(2))
    rows = [row(i % 7, **FILTERS[i % len(FILTERS)], seed=i) for i in range(60)]
    together = ids(sample(logits, rows))
    assert [ids(sample(logits[i : i + 1], [rows[i]]))[0] for i in range(60)] == together
    backwards = ids(sample(logits.flip(0), rows[::-1]))
    assert backwards[::-1] == together


def test_uniform_numbers_are_even_and_neighbours_independent() -> None:
    numbers = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert ((counts - 800) ** 2 / 800).sum() < 49 + 5 * math.sqrt(98)
    for shifted in (numbers[1:, :] * numbers[:-1, :], numbers[:, 1:] * numbers[:, :-1]):
        assert shifted.mean() == pytest.approx(0.25, abs=0.005)


def test_cold_rows_are_greedy_beside_warm_ones() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    sampled = ids(sample(logits, [row(temperature=0.0), row(temperature=1.0, seed=1), row(temperature=1e-7)]))
    best = logits.argmax(dim=-1).tolist()
    assert [sampled[0], sampled[2]] == [best[0], best[2]]


def token_counts(prompt: list[int], output: list[int]) -> TokenCounts:
    return TokenCounts(np.array(prompt, np.int32), np.array(output, np.int32))


def test_penalties_change_scores_as_defined() -> None:
    """Seen through reported probabilities: draws from a row whose scores are penalised by hand come out the same."""
    scores = torch.randn(30, generator=torch.Generator().manual_seed(4)) * 3
    prompt, output = [1, 2, 3, 3], [3, 4, 4, 4, 5]
    by_hand = scores.clone()
    for token_id in {*prompt, *output}:
        score = float(by_hand[token_id])
        by_hand[token_id] = score / 1.4 if score > 0 else score * 1.4
    for token_id in set(output):
        by_hand[token_id] -= 0.3 * output.count(token_id) + 0.8
    by_hand[7] += 2.5
    by_hand[9] -= 1.0
    by_hand[[0, 6]] = float("-inf")
    counts = token_counts(prompt, output[:2])
    for token_id in output[2:]:
        counts.add(token_id)
    rows = [
        row(
            i,
            masked=(0, 6),
            counts=counts,
            repetition_penalty=1.4,
            frequency_penalty=0.3,
            presence_penalty=0.8,
            logit_bias=((7, 2.5), (9, -1.0)),
        )
        for i in range(500)
    ]
    plain = [row(i) for i in range(500)]
    assert ids(sample(scores.expand(500, -1), rows)) == ids(sample(by_hand.expand(500, -1), plain))


def test_presence_and_frequency_leave_tokens_of_the_prompt_alone() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0])
    counts = token_counts([2], [])
    assert ids(sample(scores[None], [row(counts=counts, presence_penalty=2.0, temperature=0.0)])) == [2]
    counts.add(2)
    assert ids(sample(scores[None], [row(counts=counts, presence_penalty=2.0, temperature=0.0)])) == [1]


def test_token_counts_grow_with_the_output() -> None:
    counts = token_counts([5], [])
    for token_id in range(1000):
        counts.add(token_id)
        counts.add(0)
    known = dict(zip(counts.ids.tolist(), counts.output_counts.tolist(), strict=True))
    assert (len(known), known[0], known[5], known[999]) == (1000, 1001, 1, 1)


def test_logprobs_are_of_the_scores_as_they_came_and_only_where_wanted() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(5))
    rows = [
        row(temperature=0.0, logprobs=3, logit_bias=((4, 50.0),)),
        row(temperature=0.0),
        row(temperature=0.3, logprobs=0),
    ]
    sampled = sample(logits, rows)
    expected = torch.log_softmax(logits, dim=-1)
    assert ids(sampled)[0] == 4
    assert sampled.logprobs is not None
    first, second, third = sampled.logprobs
    assert first is not None
    assert first.logprob == pytest.approx(float(expected[0, 4]))
    assert [token_id for token_id, _ in first.top] == expected[0].topk(3).indices.tolist()
    assert second is None
    assert third is not None
    assert third.top == ()


def test_parameters_of_a_changed_batch_are_not_those_of_the_last() -> None:
    sampler = Sampler(10, CPU)
    logits = torch.zeros(2, 10)
    logits[:, 3] = 1
    greedy = SamplingRow(SamplingParams(max_tokens=1, temperature=0.0), 0)
    biased = SamplingRow(SamplingParams(max_tokens=1, temperature=0.0, logit_bias=((8, 9.0),)), 0)
    assert ids(sampler.sample(logits.clone(), [greedy, biased])) == [3, 8]
    assert ids(sampler.sample(logits.clone(), [biased, greedy])) == [8, 3]
    assert ids(sampler.sample(logits[:1].clone(), [greedy])) == [3]


EVERY_WAY: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"temperature": 0.0}]


@pytest.mark.parametrize("params", EVERY_WAY, ids=str)
@pytest.mark.parametrize("broken", ["nan", "one nan", "one inf", "-inf"])
def test_row_whose_scores_are_no_numbers_has_no_token_and_the_others_do(broken: str, params: dict[str, Any]) -> None:
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(3))
    rows = [row(position, logprobs=2, **params) for position in range(3)]
    first, _, third = ids(sample(logits, rows))
    logits[1, 7 if broken.startswith("one") else slice(None)] = float(broken.split()[-1])
    assert sample(logits, rows).token_ids == [first, None, third]
    if params == {"temperature": 0.0}:
        assert Sampler(400, CPU).best(logits).token_ids == [first, None, third]


def test_row_of_which_every_token_is_masked_has_no_token() -> None:
    assert sample(torch.zeros(1, 6), [row(masked=tuple(range(6)), logprobs=1)]).token_ids == [None]


def test_masking_a_score_that_is_no_number_does_not_make_its_row_sound() -> None:
    logits = torch.zeros(1, 6)
    logits[0, 2] = float("inf")
    assert sample(logits, [row(masked=(2,), logprobs=1)]).token_ids == [None]


@given(
    params=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 1e-5, 1.0, 2.0]),
            "top_k": st.sampled_from([0, 1, 19, 20, 2**31 - 1]),
            "top_p": st.sampled_from([1e-300, 0.5, 1.0]),
            "min_p": st.sampled_from([0.0, 1.0]),
            "repetition_penalty": st.sampled_from([1e-3, 1.0, 100.0]),
            "frequency_penalty": st.sampled_from([-2.0, 0.0, 2.0]),
            "logit_bias": st.sampled_from([(), ((3, 100.0), (4, -100.0), (3, 100.0))]),
            "logprobs": st.sampled_from([0, 5, 20, 40]),
            "seed": st.sampled_from([-(2**63), -1, 0, 2**63 - 1]),
        }
    ),
    masked=st.sampled_from([(), (3,), (3, 19)]),
    num_impossible=st.integers(0, 10),
)
def test_parameters_at_their_limits_give_a_token_that_is_possible_and_numbers(
    params: dict[str, Any], masked: tuple[int, ...], num_impossible: int
) -> None:
    logits = torch.linspace(-50, 50, 20)[None].clone()
    logits[0, :num_impossible] = float("-inf")
    counts = token_counts([1, 2, 19], [19, 19, 5])
    sampled = sample(logits, [row(2**31, masked=masked, counts=counts, **params)])
    [token_id] = ids(sampled)
    assert num_impossible <= token_id < 20
    assert token_id not in masked
    [logprob] = sampled.logprobs or ()
    assert logprob is not None
    assert math.isfinite(logprob.logprob)
    assert not any(math.isnan(value) for _, value in logprob.top)
