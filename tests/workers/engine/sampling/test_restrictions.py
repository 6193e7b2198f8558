"""Bans of tokens and logits processors on scores made by hand."""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor

from slipstream.router.protocol.messages import ProcessorCall, SamplingParams, pack_ids
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, TokenFailure
from slipstream.workers.engine.plan.token_bans import TokenBans
from slipstream.workers.engine.processors.registered_processors import LogitsProcessors, UnknownProcessorError
from slipstream.workers.engine.processors.row_processors import RowProcessors
from slipstream.workers.engine.sampling.sampler import Sampler

VOCAB = 12
CPU = torch.device("cpu")
SCORES = torch.arange(VOCAB, dtype=torch.float32)  # the best token is the last


def sample(rows: list[SamplingRow], scores: torch.Tensor = SCORES) -> SampledTokens:
    return Sampler(VOCAB, CPU).sample(scores.expand(len(rows), -1).clone(), rows)


def failure_of(sampled: SampledTokens, at: int) -> TokenFailure:
    assert sampled.failures is not None
    return sampled.failures[at]


def restricted(
    output: list[int] | None = None,
    registered: dict[str, Callable[..., Any]] | None = None,
    masked: tuple[int, ...] = (),
    **fields: Any,
) -> SamplingRow:
    """A row after the prompt 1, 2 and this output."""
    params = SamplingParams(max_tokens=9, temperature=0.0, **fields)
    tokens = array("i", [1, 2, *(output or [])])
    return SamplingRow(
        params,
        len(tokens) - 2,
        masked_ids=masked,
        bans=TokenBans(params, tokens, 2, VOCAB) if params.allowed_token_ids or params.bad_words else None,
        processors=RowProcessors(LogitsProcessors(registered), params.logits_processors, tokens, 2)
        if registered
        else None,
    )


PLAIN = SamplingRow(SamplingParams(max_tokens=9, temperature=0.0), 0)


def test_only_allowed_tokens_are_picked_and_other_rows_keep_theirs() -> None:
    rows = [restricted(allowed_token_ids=pack_ids([3, 5])), PLAIN, restricted(allowed_token_ids=pack_ids([0]))]
    assert sample(rows).token_ids == [5, 11, 0]


def test_a_bad_word_is_avoided_at_its_last_token_where_the_output_ends_in_the_others() -> None:
    words = ((11,), (4, 10), (4, 4, 9))
    assert sample([restricted([4, 4], bad_words=words)]).token_ids == [8]
    assert sample([restricted([4], bad_words=words)]).token_ids == [9]
    assert sample([restricted([4, 3], bad_words=words)]).token_ids == [10]


def test_the_prompt_does_not_count_for_bad_words() -> None:
    assert sample([restricted([], bad_words=((1, 2, 11),))]).token_ids == [11]
    assert sample([restricted([11], bad_words=((2, 11, 10), (11, 11)))]).token_ids == [10]


TOKENS = st.integers(0, 3)


@given(st.lists(st.lists(TOKENS, min_size=1, max_size=3), min_size=1, max_size=5), st.lists(TOKENS, max_size=6))
def test_bad_words_are_those_of_transformers_where_there_is_no_prompt(
    words: list[list[int]], output: list[int]
) -> None:
    params = SamplingParams(max_tokens=9, bad_words=tuple(map(tuple, words)))
    banned = np.empty(VOCAB, np.bool_)
    TokenBans(params, array("i", output), 0, VOCAB).write(banned)
    theirs = NoBadWordsLogitsProcessor(words, eos_token_id=None)
    scores = theirs(torch.tensor([output], dtype=torch.int64), torch.zeros(1, VOCAB))
    assert banned.tolist() == scores[0].isinf().tolist()


@pytest.mark.parametrize(
    ("fields", "masked", "named"),
    [
        ({"allowed_token_ids": pack_ids([3]), "bad_words": ((3,),)}, (), "allowed_token_ids, bad_words"),
        ({"allowed_token_ids": pack_ids([3])}, (3,), "allowed_token_ids, min_tokens"),
        ({"bad_words": tuple((token_id,) for token_id in range(VOCAB))}, (), "bad_words"),
    ],
)
def test_where_nothing_is_left_the_failure_names_the_fields(
    fields: dict[str, Any], masked: tuple[int, ...], named: str
) -> None:
    sampled = sample([PLAIN, restricted(masked=masked, **fields)])
    assert sampled.token_ids == [11, None]
    assert failure_of(sampled, 1).kind == "invalid_request"
    assert failure_of(sampled, 1).message == f"no token is left to pick at position 0 of the output, with {named}"


def test_scores_that_are_no_numbers_are_not_blamed_on_the_request() -> None:
    sampled = sample([restricted(allowed_token_ids=pack_ids([3]))], torch.full((VOCAB,), math.nan))
    assert (sampled.token_ids, sampled.failures) == ([None], {})


def test_reported_log_probabilities_are_those_of_the_model() -> None:
    [reported] = sample([restricted(allowed_token_ids=pack_ids([3]), logprobs=1)]).logprobs or [None]
    assert reported is not None
    assert reported.top[0][0] == 11


def calls(*names: str, args: str = "") -> tuple[ProcessorCall, ...]:
    return tuple(ProcessorCall(name, args) for name in names)


def test_a_processor_sees_the_tokens_so_far_and_its_arguments_and_changes_the_scores() -> None:
    seen: list[tuple[Any, ...]] = []

    def only(prompt_ids: Any, output_ids: Any, logits: torch.Tensor, token_id: int) -> torch.Tensor:
        seen.append((prompt_ids, output_ids, logits.tolist()))
        logits.fill_(0)
        logits[token_id] = 1
        return logits

    row = restricted([7], {"only": only}, logits_processors=calls("only", args='{"token_id": 6}'))
    assert sample([row, PLAIN]).token_ids == [6, 11]
    assert seen == [((1, 2), (7,), SCORES.tolist())]


def test_processors_run_in_the_order_of_the_request_and_may_return_arrays() -> None:
    registered = {"twice": lambda p, o, logits: logits * 2, "less": lambda p, o, logits: logits.numpy()[::-1].copy()}
    row = restricted([], registered, logits_processors=calls("twice", "less"))
    assert sample([row]).token_ids == [0]


def test_a_processor_cannot_allow_what_is_forbidden() -> None:
    def favour(p: Any, o: Any, logits: torch.Tensor) -> torch.Tensor:
        return torch.full_like(logits, 5.0)

    scores = SCORES.clone()
    scores[0] = -math.inf
    row = restricted(
        [],
        {"favour": favour},
        logits_processors=calls("favour"),
        bad_words=((1,),),
    )
    assert sample([row], scores).token_ids == [2]


def broken(p: Any, o: Any, logits: Any) -> Any:
    raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (broken, "'p' raised RuntimeError: out of luck"),
        (lambda p, o, logits: exit(1), "'p' raised SystemExit: 1"),
        (lambda p, o, logits: logits[:5], "'p' returned (5,) scores instead of (12,)"),
        (lambda p, o, logits: logits * math.nan, "'p' returned a score that is not a number"),
        (lambda p, o, logits: logits + math.inf, "'p' returned a score that is not a number"),
        (lambda p, o, logits: None, "'p' raised "),
        (lambda p, o: None, "'p' raised TypeError"),
    ],
)
def test_a_processor_that_fails_ends_its_row_alone(function: Callable[..., Any], said: str) -> None:
    sampled = sample([PLAIN, restricted([], {"p": function}, logits_processors=calls("p")), PLAIN])
    assert sampled.token_ids == [11, None, 11]
    assert failure_of(sampled, 1).kind == "logits_processor_failed"
    assert said in failure_of(sampled, 1).message


def test_a_processor_that_forbids_everything_is_named() -> None:
    nothing = {"nothing": lambda p, o, logits: torch.full_like(logits, -math.inf)}
    sampled = sample([restricted([], nothing, logits_processors=calls("nothing"))])
    assert failure_of(sampled, 0).message.endswith("with logits_processors")


def test_a_slow_processor_is_in_the_log_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    def slow(p: Any, o: Any, logits: Any) -> Any:
        time.sleep(0.06)
        return logits

    row = restricted([], {"slow": slow}, logits_processors=calls("slow"))
    with caplog.at_level(logging.WARNING):
        sample([row, row])
    assert sum("'slow' took" in record.getMessage() for record in caplog.records) == 1


def test_registered_functions_are_imported_and_failures_name_the_key() -> None:
    loaded = LogitsProcessors.load({"b": "math:sqrt", "a": "os:path.join"})
    assert loaded.names == ("a", "b")
    with pytest.raises(UnknownProcessorError, match="'c' is not registered at this worker; registered: 'a', 'b'"):
        loaded.chosen(calls("c"))
    for target, reason in (
        ("no_such_module:f", "ModuleNotFoundError"),
        ("math:no_such", "AttributeError"),
        ("math:pi", "is not a function"),
    ):
        with pytest.raises(EngineConfigError, match=rf"engine\.logits_processors\.x: .*{reason}"):
            LogitsProcessors.load({"x": target})
