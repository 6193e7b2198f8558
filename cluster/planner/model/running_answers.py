"""How the answers that are being generated do: they tell of longer ones, and of too many at once, long before the first
of these has ended.

In a steady state as many tokens are generated a second as requests of so many tokens come, whatever the lengths. So
what workers generate now, over the requests that come, is how long answers are. While answers pile up, and where
workers can generate no more, it is less than that and never more but by chance, which is taken off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.cluster.planner.model.demand import MIN_ARRIVALS, has_shifted, is_answered
from slipstream.cluster.planner.model.queueing_model import WorkerModel
from slipstream.router.status.load_signals import Signals

MAX_PROMPTS = 0.9  # of the time of a worker that decodes, to reckon with
URGENT = 0.5  # of the target: below it twice as many workers change at once, and up to three come for each there is


@dataclass(frozen=True, slots=True)
class RunningAnswers:
    """`num` answers are being generated, `in_time` of them (a share) as fast as their level asks for. `tokens_per_s` is
    what they would get together if there were fewer of them by as many as chance makes, `gap_s` the mean time between
    the tokens of one."""

    num: int
    tokens_per_s: float
    in_time: float
    gap_s: float

    def osl(self, per_s: float) -> float:
        """Tokens that an answer has at least, where requests come at such a rate."""
        return self.tokens_per_s / per_s if per_s > 0.0 else 0.0

    def is_late(self, target_attainment: float) -> bool:
        """Most of the answers that run are late, and they are too many for chance."""
        return self.num >= MIN_ARRIVALS and self.in_time < URGENT * target_attainment


def running_of(signals: Signals, decode: WorkerModel, isl: float) -> RunningAnswers:
    """By the step that each decode worker has with what is on it, and what prompts of `isl` tokens take there."""
    base_s, by_seq_s, by_token_s = decode.decode
    workers = [worker for worker in signals.workers if worker.role == "decode" and worker.num_running]
    num = sum(worker.num_running for worker in workers)
    surely = 1.0 - 1.0 / math.sqrt(num) if num else 0.0
    alone_s, num_chunks = decode.prompt_s(isl, 0.0)
    num_in_time, tokens_per_s, gaps_s = 0, 0.0, 0.0
    for worker in workers:
        context = worker.context_tokens / max(worker.num_seqs, worker.num_running)
        share = min(worker.prefill_share, MAX_PROMPTS)
        slope_s = by_seq_s + by_token_s * context

        def gap_at(batch: float, share: float = share, slope_s: float = slope_s) -> float:
            step_s = base_s + slope_s * batch
            chunk_s = max(alone_s / num_chunks + slope_s * batch, step_s)
            return 1.0 / (share / chunk_s + (1.0 - share) / step_s)

        gap_s = gap_at(worker.num_running)
        gaps_s += gap_s * worker.num_running
        num_in_time += worker.num_running if gap_s <= signals.slo_itl_s else 0
        sure_batch = surely * worker.num_running
        tokens_per_s += sure_batch / gap_at(sure_batch) if sure_batch else 0.0  # a single answer is not sure
    return RunningAnswers(num, tokens_per_s, num_in_time / num if num else 1.0, gaps_s / num if num else 0.0)


def attainment_of(signals: Signals, running: RunningAnswers) -> float:
    """The share of requests that lately kept the levels: of the short window, the worst of first tokens, whole answers
    and those that run. 0 where nothing is known: few requests say, or what ended was asked before the load changed."""
    if has_shifted(signals) or not is_answered(signals):
        return 0.0
    short = signals.short
    ttft, whole = short.ttft_attainment, short.attainment
    if ttft is None or whole is None or min(short.ttft_s.count, short.osl.count) < MIN_ARRIVALS:
        return 0.0
    return min(ttft, whole, running.in_time)
