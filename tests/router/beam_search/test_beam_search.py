"""Beam search gives the hypotheses of transformers' `generate(num_beams=...)`: the same ids, in the same order."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.router.beam_search.beam_search import BeamSearch, BeamSettings, EarlyStopping
from slipstream.router.protocol.messages import TokenLogprob

PROMPT = [5, 9, 2, 17]
VOCAB = 50


@cache
def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.6,
    )
    return LlamaForCausalLM(config).eval()


def theirs(settings: BeamSettings, ends: list[int], num_returned: int) -> list[list[int]]:
    """Token ids of the hypotheses, without what fills them up."""
    with torch.inference_mode():
        out: Any = tiny_model().generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            do_sample=False,
            num_beams=settings.num_beams,
            num_return_sequences=num_returned,
            max_new_tokens=settings.max_tokens,
            length_penalty=settings.length_penalty,
            early_stopping=settings.early_stopping,
            eos_token_id=ends or None,
            pad_token_id=VOCAB - 1,
        )
    found = []
    for row in out[:, len(PROMPT) :].tolist():
        cut = next((at + 1 for at, token_id in enumerate(row) if token_id in ends), len(row))
        found.append(row[:cut])
    return found


def candidates(outputs: list[list[int]], number: int) -> list[list[tuple[int, TokenLogprob]]]:
    """The best next tokens of each of several outputs of equal length."""
    with torch.inference_mode():
        logits = tiny_model()(torch.tensor([PROMPT + tokens for tokens in outputs])).logits[:, -1]
        values, ids = torch.log_softmax(logits.float(), dim=-1).topk(min(number, VOCAB))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [[(token_id, TokenLogprob(value)) for token_id, value in zip(*row, strict=True)] for row in rows]


def ours(settings: BeamSettings, ends: list[int]) -> BeamSearch:
    search = BeamSearch(settings, ends)
    while not search.is_over:
        paths = [[beam.token_id for beam in last.path()] if last else [] for last in search.beams]
        search.advance(candidates(paths, search.num_candidates))
    return search


STOPPING: tuple[EarlyStopping, ...] = (False, True, "never")
NUM_ENDS = (0, 1, 3)


@cache
def likely_tokens() -> list[int]:
    """Distinct tokens of the best hypothesis of a search without end tokens."""
    return list(dict.fromkeys(ours(BeamSettings(2, 12), []).hypotheses[0].token_ids[2:]))


@pytest.mark.parametrize("num_beams", [2, 4, 8])
@pytest.mark.parametrize("early_stopping", STOPPING)
def test_hypotheses_are_those_of_transformers(num_beams: int, early_stopping: EarlyStopping) -> None:
    num_ended = 0
    for penalty, num_ends in itertools.product((-1.0, 0.0, 0.5, 1.0, 2.0), NUM_ENDS):
        ends = likely_tokens()[:num_ends]
        settings = BeamSettings(num_beams, 12, penalty, early_stopping)
        search = ours(settings, ends)
        expected = theirs(settings, ends, num_beams)
        assert [hypothesis.token_ids for hypothesis in search.hypotheses] == expected, (penalty, ends)
        num_ended += sum(hypothesis.has_end for hypothesis in search.hypotheses)
    assert num_ended, "no hypothesis ended with an end token: the test shows nothing"


def test_fewer_sequences_than_beams_are_the_best_ones() -> None:
    settings = BeamSettings(4, 10)
    assert [one.token_ids for one in ours(settings, likely_tokens()[:1]).hypotheses[:2]] == theirs(
        settings, likely_tokens()[:1], 2
    )


def test_the_log_probabilities_of_a_hypothesis_sum_up_to_its_score() -> None:
    best = ours(BeamSettings(4, 10, 1.0), []).hypotheses[0]
    total = sum(beam.logprob.logprob for beam in best.beam.path())
    assert total / len(best.token_ids) == pytest.approx(float(best.score), rel=1e-5)
