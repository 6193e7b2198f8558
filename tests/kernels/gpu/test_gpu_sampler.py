"""The engine's sampling on a GPU gives the tokens of the sampler in torch, whatever the rows ask for."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.kernels.sampling.gpu import sampling
from slipstream.router.protocol.messages import ProcessorCall, SamplingParams, pack_ids
from slipstream.workers.engine.execution.gpu.gpu_sampler import GpuSampler
from slipstream.workers.engine.plan.step_plan import SamplingRow
from slipstream.workers.engine.plan.token_bans import TokenBans
from slipstream.workers.engine.plan.token_counts import TokenCounts
from slipstream.workers.engine.processors.registered_processors import LogitsProcessors
from slipstream.workers.engine.processors.row_processors import RowProcessors
from slipstream.workers.engine.sampling.sampler import Sampler

VOCAB = 300


def counts(prompt: list[int], output: list[int]) -> TokenCounts:
    return TokenCounts(np.array(prompt, np.int32), np.array(output, np.int32))


def rows() -> list[SamplingRow]:
    """Greedy and drawn, cut in every way, penalised, biased, masked."""
    repeated = counts([5, 6, 7, 5], [9, 9, 8])
    return [
        SamplingRow(SamplingParams(8, temperature=0.0), 0),
        SamplingRow(SamplingParams(8, temperature=1.0, seed=3), 4),
        SamplingRow(SamplingParams(8, temperature=0.7, seed=4, top_k=5), 1),
        SamplingRow(SamplingParams(8, temperature=1.3, seed=5, top_p=0.6), 2),
        SamplingRow(SamplingParams(8, temperature=0.9, seed=6, min_p=0.2, top_k=40, top_p=0.9), 3),
        SamplingRow(SamplingParams(8, temperature=0.0, repetition_penalty=1.5, presence_penalty=0.5), 3, repeated),
        SamplingRow(SamplingParams(8, temperature=1.0, seed=7, frequency_penalty=2.0), 3, repeated),
        SamplingRow(SamplingParams(8, temperature=0.0, logit_bias=((17, 50.0), (18, 60.0))), 0, None, (18,)),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_of_the_sampler_in_torch(device: torch.device, seed: int) -> None:
    logits = torch.randn(8, VOCAB, generator=torch.manual_seed(seed)) * 3
    expected = Sampler(VOCAB, torch.device("cpu")).sample(logits.clone(), rows())
    found = GpuSampler(VOCAB, device, sampling).sample(logits.to(device), rows())
    assert list(found.token_ids) == list(expected.token_ids)
    assert found.token_ids[7] == 17


def test_bans_and_processors_are_obeyed_and_failures_reported(device: torch.device) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.manual_seed(0))
    registered = LogitsProcessors({"reverse": lambda p, o, scores: scores.flip(0), "bad": lambda p, o, scores: None})

    def restricted(**params: Any) -> SamplingRow:
        sampling, tokens = SamplingParams(8, temperature=0.0, **params), array("i", [1])
        processors = RowProcessors(registered, sampling.logits_processors, tokens, 1)
        return SamplingRow(sampling, 0, None, (7,), None, TokenBans(sampling, tokens, 1, VOCAB), processors)

    restricted_rows = [
        restricted(allowed_token_ids=pack_ids([5, 6, 7])),
        restricted(logits_processors=(ProcessorCall("reverse"),)),
        restricted(logits_processors=(ProcessorCall("bad"),)),
        restricted(allowed_token_ids=pack_ids([7])),
    ]
    expected = Sampler(VOCAB, torch.device("cpu")).sample(logits.clone(), restricted_rows)
    found = GpuSampler(VOCAB, device, sampling).sample(logits.to(device), restricted_rows)
    assert list(found.token_ids) == list(expected.token_ids)
    assert found.failures == expected.failures
    assert found.failures is not None
    assert [failure.kind for failure in found.failures.values()] == ["logits_processor_failed", "invalid_request"]


def test_scores_that_are_no_numbers_give_no_token(device: torch.device) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.manual_seed(0))
    logits[1, 7] = float("nan")
    found = GpuSampler(VOCAB, device, sampling).sample(logits.to(device), [])
    assert [token is None for token in found.token_ids] == [False, True, False]
    assert found.token_ids[0] == int(logits[0].argmax())


def test_log_probabilities_are_reported_as_ever(device: torch.device) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.manual_seed(0))
    [row] = [SamplingRow(SamplingParams(8, temperature=0.0, logprobs=2), 0)]
    found = GpuSampler(VOCAB, device, sampling).sample(logits.to(device), [row])
    assert found.logprobs is not None
    [reported] = found.logprobs
    assert reported is not None
    assert len(reported.top) == 2
