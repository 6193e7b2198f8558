"""Sampling on the device against the definition, and against the sampler that the engine has in torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.kernels.sampling.gpu.sampling import (
    Draws,
    Penalties,
    Updates,
    add_scores,
    penalise,
    sample,
    sample_reference,
)
from slipstream.router.protocol.messages import SamplingParams
from slipstream.workers.engine.plan.step_plan import SamplingRow
from slipstream.workers.engine.plan.token_counts import TokenCounts
from slipstream.workers.engine.sampling.sampler import Sampler, uniform


def draws_of(logits: Tensor, params: list[SamplingParams]) -> Draws:
    vocab_size = logits.shape[1]

    def tensor(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)

    return Draws(
        tensor([p.temperature for p in params], torch.float32),
        tensor([p.min_p for p in params], torch.float32).log(),
        tensor([p.top_k if p.top_k > 0 else vocab_size for p in params], torch.int32),
        tensor([p.top_p for p in params], torch.float64),
        tensor([uniform(p.seed, 7) for p in params], torch.float64),
    )


CUTS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40, "top_p": 0.8},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 0.01, "top_k": 20, "top_p": 0.95, "temperature": 1.7},
]


@pytest.mark.parametrize("vocab_size", [37, 3000])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_tokens_are_those_of_the_definition_and_of_the_sampler(
    device: torch.device, vocab_size: int, ties: bool
) -> None:
    torch.manual_seed(vocab_size)
    params = [
        SamplingParams(max_tokens=9, **({"temperature": 1.0, "seed": 100 * i + j} | cut))
        for i, cut in enumerate(CUTS)
        for j in range(2)
    ]
    wide = torch.randn(len(params), vocab_size + 5, device=device) * 3
    if ties:
        wide = wide.round()
    logits = wide[:, :vocab_size]
    draws, kept = draws_of(logits, params), logits.clone()
    token_ids, sound = sample(logits, draws)
    assert sound.all()
    assert torch.equal(logits, kept)
    assert token_ids.tolist() == sample_reference(logits, draws).tolist()
    rows = [SamplingRow(p, 7, None, ()) for p in params]
    assert token_ids.tolist() == [int(t) for t in Sampler(vocab_size, device).sample(kept, rows).token_ids]


def test_draws_follow_the_probabilities(device: torch.device) -> None:
    torch.manual_seed(0)
    logits = torch.randn(11, device=device)
    expected = torch.where(logits >= logits.topk(5).values[-1], logits, -torch.inf).softmax(0)
    num_rows = 60
    rows = logits.expand(num_rows, 11).contiguous()
    draws = draws_of(rows, [SamplingParams(max_tokens=9, temperature=1.0, top_k=5)] * num_rows)
    even = (torch.arange(num_rows, dtype=torch.float64, device=device) + 0.5) / num_rows
    token_ids, _ = sample(rows, replace(draws, uniforms=even))
    share = torch.bincount(token_ids.long(), minlength=11) / num_rows
    assert ((share - expected).abs() <= 1.01 / num_rows).all()
    assert token_ids.tolist() == sorted(token_ids.tolist())


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-52])
def test_a_draw_never_takes_a_token_that_is_cut_off(device: torch.device, u: float) -> None:
    logits = torch.full((1, 2500), -50.0, device=device)
    logits[0, [3, 1100, 2400]] = torch.tensor([1.0, 1.0, 1.0], device=device)
    draws = draws_of(logits, [SamplingParams(max_tokens=9, temperature=1.0, top_k=2)])
    token_ids, _ = sample(logits, replace(draws, uniforms=torch.full_like(draws.uniforms, u)))
    assert token_ids.tolist() == [3 if u < 0.5 else 1100]  # of three equal ones the first two


def test_rows_without_a_finite_best_score_are_not_sound(device: torch.device) -> None:
    logits = torch.randn(5, 1030, device=device)
    logits[1, 1029] = float("nan")
    logits[2, 4] = float("inf")
    logits[3] = float("-inf")
    logits[4, 1:] = float("-inf")
    draws = draws_of(logits, [SamplingParams(max_tokens=9, temperature=1.0, top_p=0.5, seed=seed) for seed in range(5)])
    for chosen in (draws, None):
        token_ids, sound = sample(logits, chosen)
        assert sound.tolist() == [True, False, False, False, True]
        assert token_ids[4] == 0
        assert ((token_ids >= 0) & (token_ids < 1030)).all()


def test_greedy_takes_the_first_of_equals(device: torch.device) -> None:
    logits = torch.randn(2, 5000, device=device).clamp(max=2)
    logits[0, [4900, 1500, 700]] = 9.0
    logits[1, 4999] = 9.0
    assert sample(logits, None)[0].tolist() == [700, 4999]


def test_changed_scores_are_those_of_the_sampler(device: torch.device) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 600, device=device)
    params = SamplingParams(
        max_tokens=9,
        temperature=0.0,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.4,
        logit_bias=((17, 30.0), (18, 29.0)),
    )
    counts = TokenCounts(np.array([1, 2, 17], np.int32), np.array([17, 17, 5], np.int32))
    entries = Updates(
        torch.full((len(counts.ids),), 1, dtype=torch.int32, device=device),
        torch.from_numpy(counts.ids.astype(np.int32)).to(device),
        torch.from_numpy(counts.output_counts.copy()).to(device),
    )
    vectors = [torch.full((3,), value, device=device) for value in (1.3, 0.2, 0.4)]
    expected = logits.clone()
    Sampler(600, device).sample(expected, [SamplingRow(params, 0, counts, (18,))] * 3)
    before = logits.clone()
    penalise(logits, Penalties(entries, *vectors))
    ids = torch.tensor([17, 18, 18], dtype=torch.int32, device=device)
    values = torch.tensor([30.0, 29.0, float("-inf")], device=device)
    for first, last in ((0, 2), (2, 3)):
        rows = torch.ones(last - first, dtype=torch.int32, device=device)
        add_scores(logits, Updates(rows, ids[first:last], values[first:last]))
    torch.testing.assert_close(logits[1], expected[1])
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    logits = torch.randn(2, 9, device=device)
    draws = draws_of(logits, [SamplingParams(max_tokens=9, temperature=1.0)] * 2)
    with pytest.raises(ValueError, match="logits must be"):
        sample(logits.double(), None)
    with pytest.raises(ValueError, match=r"draws\.temperature must be"):
        sample(logits[:1], draws)
    rows = torch.zeros(2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"updates\.values must be"):
        add_scores(logits, Updates(rows, rows, rows))
