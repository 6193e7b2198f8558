"""What requests say of a cluster that does nothing else: how long a decode step is, and a prompt.

The router's fits hold every step that a worker told of, those beside prompts that were computed on the same cores too,
a pool learns from every eighth, and a fit of three numbers follows what it saw last. So decode steps are taken from
streams of one batch size at a time, which begin together and are followed by none: the time from token to token in the
later half of a stream, when all prompts are done, is a step with all that belongs to it. The median over the streams of
a size is one measurement, and a line through the measurements is the profile. So it is with the time to the first token
of prompts that come one at a time: what does not grow with them is what a client waits for anyway (HTTP, messages, the
beginning of a step).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.cluster.bench.answer import Answer

MIN_STREAMS = 2  # for a median that one disturbance does not decide


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Of one worker: so many sequences that attend to so many tokens altogether take so long."""

    num_seqs: int
    context_tokens: float
    seconds: float


def decode_step(num_seqs: int, answers: Iterable[Answer]) -> DecodeStep | None:
    """From streams of which `num_seqs` at a time ran on a worker; None if too few of them tell."""
    told = [
        (answer.num_prompt_tokens + answer.num_tokens / 2, answer.steady_gap_s)
        for answer in answers
        if answer.is_good and answer.num_prompt_tokens is not None and answer.steady_gap_s is not None
    ]
    if len(told) < MIN_STREAMS:
        return None
    context = statistics.fmean(tokens for tokens, _ in told)
    return DecodeStep(num_seqs, num_seqs * context, statistics.median(seconds for _, seconds in told))


def step_times(steps: Sequence[DecodeStep]) -> tuple[float, float, float] | None:
    """Seconds a step, a sequence and a token of context: none below 0, and the least squares of relative errors. None
    if nothing was measured."""
    if not steps:
        return None
    return line([(1.0, step.num_seqs, step.context_tokens) for step in steps], [step.seconds for step in steps])


def line(measured: Sequence[tuple[float, float, float]], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Least squares of relative errors, with no coefficient below 0."""
    times = np.array(seconds)
    features = np.array(measured) / times[:, None]
    best: tuple[float, tuple[float, float, float]] | None = None
    for kept in itertools.chain.from_iterable(itertools.combinations(range(3), count) for count in (1, 2, 3)):
        if len(kept) > len(times):
            continue
        found = np.linalg.lstsq(features[:, kept], np.ones(len(times)), rcond=None)[0]
        if (found < 0).any():
            continue
        error = float(np.square(features[:, kept] @ found - 1.0).sum())
        if best is None or error < best[0] - 1e-9:
            all_of_them = [0.0, 0.0, 0.0]
            for at, value in zip(kept, found, strict=True):
                all_of_them[at] = float(value)
            best = error, (all_of_them[0], all_of_them[1], all_of_them[2])
    assert best is not None, "one feature alone always has a coefficient over 0"
    return best[1]


@dataclass(frozen=True, slots=True)
class LonePrompts:
    """Prompts of one length, one after the other: the median time to the first token."""

    num_tokens: float
    ttft_s: float


def lone_prompts(answers: Iterable[Answer]) -> LonePrompts | None:
    """Without those that a cache knew in part."""
    told = [
        (answer.num_prompt_tokens, answer.ttft_s)
        for answer in answers
        if answer.is_good and answer.num_prompt_tokens is not None and answer.ttft_s is not None
        if (answer.num_cached_tokens or 0) * 10 <= answer.num_prompt_tokens
    ]
    if len(told) < MIN_STREAMS:
        return None
    return LonePrompts(statistics.median(n for n, _ in told), statistics.median(seconds for _, seconds in told))


def prompt_times(prompts: Sequence[LonePrompts]) -> tuple[float, float, float] | None:
    """Seconds a request, a token, and a pair of a token and one before it. None if fewer than three lengths tell."""
    if len(prompts) < 3:
        return None
    features = [(1.0, one.num_tokens, 0.5 * one.num_tokens**2) for one in prompts]
    return line(features, [one.ttft_s for one in prompts])
