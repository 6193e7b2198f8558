"""Measures an otherwise idle cluster by its requests: how long a decode step takes, and a prompt.

The router's own fits are not good enough for that. They include every step that a worker reports, even those beside
prompts on the same cores; a pool learns from every eighth step only; and a fit of three numbers follows the latest
samples. So decode steps are measured by streams of one batch size at a time, which begin together. In the later half of
a stream, when all prompts are done, the time from token to token is that of a step with everything that belongs to it.
The median over the streams of a size is one measurement, and a line through the measurements is the profile. The time
to first token of prompts that come one at a time is treated in the same way: the part that does not grow with the
prompt is what a client has to wait for anyway (HTTP, messages, the beginning of a step).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.profiling.profile_load import ProfilePhase
from slipstream.cluster.tools.bench.profiling.relative_fit import relative_fit

MIN_STREAMS = 2  # for a median that a single disturbance does not decide
MAX_TIMES_OFF = 3.0  # a larger error is not noise: a client without a core reads many tokens at once
MIN_STEPS_TO_JUDGE = 5


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One measured step of a worker: how many sequences, how many tokens they attend to in all, and how long it
    took."""

    num_seqs: int
    context_tokens: float
    seconds: float


def decode_step(num_seqs: int, answers: Iterable[ClientAnswer]) -> DecodeStep | None:
    """The step of streams that ran `num_seqs` at a time on a worker; None if too few of them are usable."""
    measured = [
        (answer.num_prompt_tokens + answer.num_tokens / 2, answer.steady_gap_s)
        for answer in answers
        if answer.is_good and answer.num_prompt_tokens is not None and answer.steady_gap_s is not None
    ]
    if len(measured) < MIN_STREAMS:
        return None
    context = statistics.fmean(tokens for tokens, _ in measured)
    return DecodeStep(num_seqs, num_seqs * context, statistics.median(seconds for _, seconds in measured))


def step_times(steps: Sequence[DecodeStep]) -> tuple[float, float, float] | None:
    """Seconds per step, per sequence and per token of context, none of them below 0, with the least squares of relative
    errors. A measurement that contradicts all others is left out. None if nothing was measured."""
    if not steps:
        return None
    line = _line(steps)
    if len(steps) < MIN_STEPS_TO_JUDGE:
        return line
    for one in steps:
        others = [step for step in steps if step is not one]
        without = _line(others)
        if times_off(one, without) > MAX_TIMES_OFF and all(times_off(s, without) <= MAX_TIMES_OFF for s in others):
            return without
    return line


def times_off(step: DecodeStep, line: tuple[float, float, float]) -> float:
    """The factor by which a measurement and a line differ, in whichever direction."""
    told_s = line[0] + line[1] * step.num_seqs + line[2] * step.context_tokens
    return max(told_s / step.seconds, step.seconds / told_s) if told_s > 0.0 else math.inf


def _line(steps: Sequence[DecodeStep]) -> tuple[float, float, float]:
    features = [(1.0, step.num_seqs, step.context_tokens) for step in steps]
    step_s, seq_s, context_token_s = relative_fit(features, [step.seconds for step in steps])
    return step_s, seq_s, context_token_s


@dataclass(frozen=True, slots=True)
class IsolatedPrompts:
    """Prompts of one length, one after the other: the median time to the first token."""

    num_tokens: float
    ttft_s: float


def isolated_prompts(answers: Iterable[ClientAnswer]) -> IsolatedPrompts | None:
    """The measurement of some prompts, leaving out those that were partly cached."""
    measured = [
        (answer.num_prompt_tokens, answer.ttft_s)
        for answer in answers
        if answer.is_good and answer.num_prompt_tokens is not None and answer.ttft_s is not None
        if (answer.num_cached_tokens or 0) * 10 <= answer.num_prompt_tokens
    ]
    if len(measured) < MIN_STREAMS:
        return None
    return IsolatedPrompts(
        statistics.median(n for n, _ in measured), statistics.median(seconds for _, seconds in measured)
    )


def prompt_times(prompts: Sequence[IsolatedPrompts]) -> tuple[float, float, float] | None:
    """Seconds per request, per token, and per pair of a token and an earlier one. None with fewer than three
    lengths."""
    if len(prompts) < 3:
        return None
    features = [(1.0, one.num_tokens, 0.5 * one.num_tokens**2) for one in prompts]
    request_s, token_s, pair_s = relative_fit(features, [one.ttft_s for one in prompts])
    return request_s, token_s, pair_s


@dataclass(frozen=True, slots=True)
class IsolatedRuns:
    """What the requests of a profile's load have shown."""

    steps: Sequence[DecodeStep] = ()
    prompts: Sequence[IsolatedPrompts] = ()

    @classmethod
    def of(cls, load: Sequence[ProfilePhase], runs: Sequence[LevelRun]) -> IsolatedRuns:
        """The measurements in `runs`, of which there is one for each phase of `load`."""
        both = list(zip(load, runs, strict=True))
        waves: dict[tuple[float, int], list[ClientAnswer]] = defaultdict(list)
        for phase, run in both:
            if phase.kind == "decode":
                waves[phase.source.input.mean, phase.num_seqs] += run.answers
        steps = [decode_step(num_seqs, answers) for (_, num_seqs), answers in waves.items()]
        prompts = [isolated_prompts(run.answers) for phase, run in both if phase.kind == "prompt"]
        return cls([one for one in steps if one is not None], [one for one in prompts if one is not None])
