"""Which running answer should move to another decode worker.

New requests go where they cost least. Running ones stay where they began, which can become the wrong place: a worker
has joined or changed its role and is empty, answers turn out longer than forecast, or several long ones have met by
chance. What a migration changes is added up in seconds, as the `slo` policy does for a new request:

    its own      the rest of its answer at the other pace, and the pause of the migration
    left behind  those on its worker get their tokens sooner
    met there    those on the other one get theirs later

and for each of them the risk that its mean time between tokens misses its level, which costs as many seconds as the
level allows the whole answer to take. Past time counts: an answer whose level is lost gains nothing but time.

A migration saves time only until new requests, which go to the fastest worker, have made it as slow as the others
(`filled_after_s`). Where many arrive nothing needs to move: it would only take the place of a new request. And a worker
with few streams is of use as it is, for prompts. So an answer whose level is not at stake moves only where it is twice
as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.router.placement.policies.estimate import MAX_SHARE
from slipstream.router.placement.policies.slo import STEP_NOISE, miss

FASTER = 0.85  # of its step time at most at the destination: a smaller difference is within the error of step times
MUCH_FASTER = 0.5  # for an answer whose level is not at stake
AT_STAKE = 0.8  # of its level: with longer steps an answer may well miss it
MIGRATION_S = 0.02  # that a migration's messages take; it pauses the stream by this and a step at either end
CANDIDATES = 3  # streams of a worker that are looked at closely: those that themselves gain most


class MigratableStream(NamedTuple):
    """A running answer: `num_tokens` of context, `num_gaps` between its tokens so far, which took `elapsed_s` in all.
    `allowed_s` is what its levels allow the whole of it to take."""

    request_id: str
    num_tokens: int
    remaining_tokens: float
    num_gaps: int
    elapsed_s: float
    itl_slo_s: float
    allowed_s: float


@dataclass(slots=True)
class ProjectedWorker:
    """A decode worker as it will be when all migrations under way have ended. `decode` holds its seconds per step, per
    sequence and per token of context, `transfer` the seconds per transfer to it and per page of `page_tokens`.
    `prefill_share` of its time goes into prompts."""

    decode: Sequence[float]
    num_seqs: int
    context_tokens: int
    transfer: Sequence[float] = (0.0, 0.0)
    page_tokens: int = 1
    prefill_share: float = 0.0

    def step_s(self, more_seqs: int = 0, more_tokens: int = 0) -> float:
        """The time between tokens with so many more sequences, and tokens of context, than it has."""
        base_s, by_seq_s, by_token_s = self.decode
        step_s = base_s + by_seq_s * (self.num_seqs + more_seqs) + by_token_s * (self.context_tokens + more_tokens)
        return step_s / (1.0 - min(self.prefill_share, MAX_SHARE))

    def transfer_s(self, num_tokens: int) -> float:
        """The time that the pages of so many tokens take to get here."""
        base_s, by_page_s = self.transfer
        return base_s + by_page_s * -(-num_tokens // self.page_tokens)


class Gain(NamedTuple):
    """What a migration is good for: `seconds` in all, and the step times that are compared."""

    stream: MigratableStream
    seconds: float
    from_step_s: float
    to_step_s: float


def filled_after_s(target: ProjectedWorker, lead_s: float, arrivals_per_s: float) -> float:
    """Seconds until new requests have filled all workers that are faster than a source. `lead_s` is the sum of how much
    shorter their steps are; each new sequence takes as much of it as it adds to a step of `target`."""
    mean_tokens = target.context_tokens // target.num_seqs if target.num_seqs else 0
    filled_per_s = (target.step_s(1, mean_tokens) - target.step_s()) * arrivals_per_s
    return lead_s / filled_per_s if filled_per_s > 0.0 else math.inf


def best_migration(
    source: ProjectedWorker,
    target: ProjectedWorker,
    candidates: Iterable[MigratableStream],
    here: Sequence[MigratableStream],
    there: Sequence[MigratableStream],
    horizon_s: float = math.inf,
) -> Gain | None:
    """The answer of `candidates` whose migration from `source` to `target` saves most within `horizon_s`. `here` and
    `there` are all streams of each of them. None if no migration saves anything, or too little to be sure of it."""
    step_s = source.step_s()
    own = []
    for stream in candidates:
        to_s = target.step_s(1, stream.num_tokens)
        # It decodes at the source while its pages travel.
        left = min(stream.remaining_tokens, horizon_s / step_s) - target.transfer_s(stream.num_tokens) / step_s
        needed = FASTER if step_s > AT_STAKE * stream.itl_slo_s else MUCH_FASTER
        if to_s <= needed * step_s and left > 0.0:
            pause_s = step_s + to_s + MIGRATION_S
            own.append((_cost_of(stream, step_s, left * (to_s - step_s) + pause_s), stream, to_s, left))
    own.sort(key=lambda one: one[0])
    best: Gain | None = None
    for cost_s, stream, to_s, left in own[:CANDIDATES]:
        left_s, met_s = source.step_s(-1, -stream.num_tokens) - step_s, to_s - target.step_s()
        for other in here:
            if other is not stream:
                cost_s += _cost_of(other, step_s, left_s * min(other.remaining_tokens, left))
        for other in there:
            cost_s += _cost_of(other, to_s - met_s, met_s * min(other.remaining_tokens, left))
        if cost_s < 0.0 and (best is None or -cost_s > best.seconds):
            best = Gain(stream, -cost_s, step_s, to_s)
    return best


def _cost_of(stream: MigratableStream, step_s: float, more_s: float) -> float:
    """What it costs an answer whose tokens come `step_s` apart if the rest of it takes `more_s` seconds more."""
    num_gaps = stream.num_gaps + stream.remaining_tokens
    rest_s = stream.elapsed_s + stream.remaining_tokens * step_s
    level_s = stream.itl_slo_s
    risk = miss((rest_s + more_s) / num_gaps, level_s, STEP_NOISE) - miss(rest_s / num_gaps, level_s, STEP_NOISE)
    return more_s + risk * stream.allowed_s
