"""What so many workers of each role would make of a load: a queueing model of one line of algebra a stage.

    prefill   G/G/k: Erlang's C for M/M/k, waits scaled by the variability of arrivals and prompts (Allen and Cunneen)
    decode    the batch that Little's law gives at the step time that this batch has; slots and pages bound it
    local     prompts that decode workers compute themselves: in chunks beside their decoding, which is slower for it

The router's placement policy chooses request by request where a prompt is computed; here the share that stays local is
whichever of a few serves most, as the policy would see to. It is a model: `corrections` of the planner say how far it
is off, and the next look at the cluster says whether the change helped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slipstream.router.registry.sequence_pages import pages_of

LOCAL_SHARES = (0.0, 0.25, 0.5, 0.75)  # of the prompts, where there are prefill workers
CARRIED_SHARES = (0.9, 0.7)  # of what the busiest stage could take: what an overloaded cluster could serve in time
IN_TIME = 0.6  # of that
MIN_NOISE = 0.05  # relative, of the mean gap of a request around the one predicted
FULL, ALMOST_FULL = 1.0, 0.92  # between these loads of the decode workers' slots first tokens begin to wait for one


@dataclass(frozen=True, slots=True)
class LatencyLevel:
    """What a `share` of the requests hope for."""

    share: float
    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class Demand:
    """`per_s` requests a second. `isl_points` are equally likely prompt lengths in tokens of which `cached_share` is in
    prefix caches, `osl` the mean answer. `burstiness`: variance over mean of arrivals."""

    per_s: float
    isl_points: tuple[float, ...]
    osl: float
    levels: tuple[LatencyLevel, ...]
    cached_share: float = 0.0
    burstiness: float = 1.0
    local_max_tokens: int | None = None  # prompts of at most so many uncached tokens stay local; None: as serves most

    @property
    def isl(self) -> float:
        return sum(self.isl_points) / len(self.isl_points)

    def times(self, factor: float) -> Demand:
        """This demand with `factor` times as many requests a second."""
        return replace(self, per_s=self.per_s * factor)


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """A worker of one role: its times in seconds as in `registry.service_times`, and its sizes."""

    decode: tuple[float, float, float]
    prefill: tuple[float, float, float]
    gap: tuple[float, float]
    reserve_s: float
    page_tokens: int
    num_pages: int
    max_slots: int
    max_step_tokens: int
    group_pages: tuple[int, ...] = ()  # these two as in `Hello`
    state_pages: int = 0

    def prompt_s(self, num_tokens: float, num_cached: float) -> tuple[float, int]:
        """Seconds to compute a prompt in chunks with nothing beside it; and the number of chunks."""
        chunk_s, token_s, pair_s = self.prefill
        new = max(num_tokens - num_cached, 1.0)
        num_chunks = max(math.ceil(new / self.max_step_tokens), 1)
        return num_chunks * chunk_s + new * token_s + new * (num_tokens - 0.5 * new) * pair_s, num_chunks

    def max_batch(self, context_tokens: float) -> float:
        """Sequences that have room at once."""
        pages = max(pages_of(math.ceil(context_tokens), self.page_tokens, self.group_pages, self.state_pages), 1)
        return max(min(float(self.max_slots), self.num_pages / pages), 1.0)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Means in seconds; loads are shares of what the stage could take, over 1 where it falls behind for good."""

    attainment: float
    goodput_per_s: float
    ttft_s: float
    itl_s: float
    prefill_load: float
    decode_load: float
    local_share: float
    batch: float

    @property
    def load(self) -> float:
        return max(self.prefill_load, self.decode_load)


def outlook(
    num_prefill: int,
    num_decode: int,
    prefill: WorkerModel,
    decode: WorkerModel,
    demand: Demand,
    local_share: float | None = None,
) -> Outlook:
    """What so many workers make of the load. Without prefill workers all prompts are local, without decode workers
    nothing is served. `local_share`: of the prompts, where it is known; None: whichever serves most."""
    if demand.per_s <= 0.0:
        return Outlook(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if num_decode < 1:
        return Outlook(0.0, 0.0, math.inf, math.inf, math.inf, math.inf, 0.0, 0.0)
    shares: tuple[float, ...] = (1.0,)
    if num_prefill:
        if local_share is None and demand.local_max_tokens is not None:
            new = [isl * (1.0 - demand.cached_share) for isl in demand.isl_points]
            local_share = sum(tokens <= demand.local_max_tokens for tokens in new) / len(new)
        shares = LOCAL_SHARES if local_share is None else (min(max(local_share, 0.0), 1.0),)
    found = [_split(num_prefill, num_decode, prefill, decode, demand, share) for share in shares]
    return max(found, key=lambda one: (round(one.goodput_per_s / demand.per_s, 3), -one.load))


def _split(
    num_prefill: int, num_decode: int, prefill: WorkerModel, decode: WorkerModel, demand: Demand, local: float
) -> Outlook:
    """With a share of the prompts computed on the decode workers."""
    steady = _steady(num_prefill, num_decode, prefill, decode, demand, local)
    if steady.load <= CARRIED_SHARES[0] and steady.attainment >= IN_TIME:
        return steady
    # What it can carry it could serve in time, if those that come too late did not take the place of others.
    tried = [
        _steady(num_prefill, num_decode, prefill, decode, demand.times(share / min(max(steady.load, 1.0), 1e6)), local)
        for share in CARRIED_SHARES
    ]
    best = max(tried, key=lambda one: one.goodput_per_s)
    goodput = IN_TIME * best.goodput_per_s
    if steady.load < 1.0:
        return replace(steady, goodput_per_s=max(steady.goodput_per_s, goodput))
    return replace(
        best,
        attainment=goodput / demand.per_s,
        goodput_per_s=goodput,
        ttft_s=math.inf,
        prefill_load=steady.prefill_load,
        decode_load=steady.decode_load,
    )


def _steady(
    num_prefill: int, num_decode: int, prefill: WorkerModel, decode: WorkerModel, demand: Demand, local: float
) -> Outlook:
    points, num_points = demand.isl_points, len(demand.isl_points)
    cached = demand.cached_share
    context = demand.isl + 0.5 * demand.osl
    steps = max(demand.osl - 1.0, 0.0)
    each_per_s = demand.per_s / num_decode
    local_per_s = each_per_s * local
    base_s, by_seq_s, by_token_s = decode.decode
    slope_s = by_seq_s + by_token_s * context

    alone = [decode.prompt_s(isl, isl * cached) for isl in points] if local else []
    alone_s, num_chunks = sum(seconds for seconds, _ in alone), sum(num for _, num in alone)

    def gap_at(batch: float) -> tuple[float, float]:
        """Seconds between tokens with so many sequences, and the share of time with prompts in the steps."""
        step_s = base_s + slope_s * batch
        if not local:
            return step_s, 0.0
        prompts_s = alone_s + num_chunks * slope_s * batch
        chunk_s = max(prompts_s / num_chunks, step_s)
        share = local_per_s * prompts_s / num_points
        busy = min(share, 1.0)
        return 1.0 / (busy / chunk_s + (1.0 - busy) / step_s), share

    max_batch = decode.max_batch(demand.isl + demand.osl)
    decode_load = each_per_s * steps * gap_at(max_batch)[0] / max_batch
    batch = _level_batch(lambda size: each_per_s * steps * gap_at(size)[0], max_batch)
    itl_s, local_load = gap_at(batch)
    local_s = [seconds + num * slope_s * batch for seconds, num in alone]  # what the prompts take, beside the batch
    decode_load = max(decode_load, local_load)

    # Prefill: waits and own time by prompt length.
    prefill_load = 0.0
    ways: list[tuple[float, float, float, float, list[float]]] = []  # share, P(wait), mean of waits, fixed, prompts
    if local:
        p_wait, wait_s = _waits(num_decode, local_load, local_s, demand.burstiness)
        ways.append((local, p_wait, wait_s, 0.5 * itl_s, local_s))
    if local < 1.0:
        remote_s = [prefill.prompt_s(isl, isl * cached)[0] for isl in points]
        prefill_load = demand.per_s * (1.0 - local) * sum(remote_s) / num_points / num_prefill
        p_wait, wait_s = _waits(num_prefill, prefill_load, remote_s, demand.burstiness)
        ways.append((1.0 - local, p_wait, wait_s, decode.reserve_s, remote_s))
    if max(prefill_load, decode_load) >= 1.0:
        return Outlook(0.0, 0.0, math.inf, itl_s, prefill_load, decode_load, local, batch)
    ttft_s = sum(
        share * (fixed_s + p_wait * wait_s + sum(prompts_s) / num_points)
        for share, p_wait, wait_s, fixed_s, prompts_s in ways
    )
    gap_s, gap_page_s = decode.gap
    hand_off_s = (1.0 - local) * (gap_s + gap_page_s * demand.isl * (1.0 - cached) / decode.page_tokens)
    mean_itl_s = itl_s + hand_off_s / max(steps, 1.0)
    sigma_s = _itl_sigma_s(mean_itl_s, itl_s, gap_at(0.0)[0], batch, demand.burstiness, steps, local_per_s, local_s)
    has_slot = min(max((FULL - decode_load) / (FULL - ALMOST_FULL), 0.0), 1.0)

    attainment = 0.0
    for level in demand.levels:
        in_time = sum(
            share * sum(_in_time(level.ttft_s - fixed_s - prompt_s, p_wait, wait_s) for prompt_s in prompts_s)
            for share, p_wait, wait_s, fixed_s, prompts_s in ways
        )
        smooth = _normal((level.itl_s - mean_itl_s) / sigma_s) if steps else 1.0
        attainment += level.share * (in_time / num_points) * smooth * has_slot
    return Outlook(attainment, attainment * demand.per_s, ttft_s, mean_itl_s, prefill_load, decode_load, local, batch)


def _level_batch(next_batch: Callable[[float], float], max_batch: float) -> float:
    """The batch at which as many tokens leave as come: that which `next_batch` makes of itself."""
    batch = 0.0
    for _ in range(40):
        after = min(next_batch(batch), max_batch)
        if abs(after - batch) <= 0.01 * after:
            return after
        batch = after
    return batch


def _waits(num_servers: int, load: float, service_s: Sequence[float], burstiness: float) -> tuple[float, float]:
    """The chance that a prompt waits, and the mean of the waits that there are."""
    mean_s = sum(service_s) / len(service_s)
    if load <= 0.0 or mean_s <= 0.0:
        return 0.0, mean_s
    if load >= 1.0:
        return 1.0, math.inf
    variance = sum((one - mean_s) ** 2 for one in service_s) / len(service_s) / (mean_s * mean_s)
    return erlang_c(num_servers, load), mean_s / (num_servers * (1.0 - load)) * (burstiness + variance) / 2.0


def erlang_c(num_servers: int, load: float) -> float:
    """The chance that all of M/M/k's servers are busy, each `load` of its time. By the recursion of Erlang's B."""
    offered = load * num_servers
    blocked = 1.0
    for number in range(1, num_servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1.0 - load * (1.0 - blocked))


def _in_time(left_s: float, p_wait: float, wait_s: float) -> float:
    """The chance that the wait is over within `left_s`; waits are exponential where there are any."""
    if left_s < 0.0:
        return 0.0
    return 1.0 - p_wait * math.exp(-left_s / wait_s) if wait_s > 0.0 else 1.0


def batch_variance(batch: float, gap_s: float, empty_s: float) -> float:
    """Of the sequences that decode together, around a mean of `batch`: Poisson's, and more the nearer to saturation, as
    each that is there too many makes all of them stay longer. Exact where arrivals are Poisson, lengths exponential and
    steps grow linearly with the batch: negative binomial then."""
    return batch * min(gap_s / empty_s, 1e3) if empty_s > 0.0 else batch


def _itl_sigma_s(
    mean_s: float,
    itl_s: float,
    empty_s: float,
    batch: float,
    burstiness: float,
    steps: float,
    local_per_s: float,
    local_s: Sequence[float],
) -> float:
    """How far the mean gap of a request lies from the mean of all: other batches than the mean one, and more or fewer
    prompts beside it. `empty_s` is the gap of an empty batch. What the batch is off by stays so for an answer's time
    times gap / `empty_s`; a request sees the mean of it over its own time."""
    batch_s = 0.0
    if batch > 0.0 and itl_s > 0.0:
        stays = min(max(empty_s / itl_s, 1e-3), 1.0)  # an answer's time over that
        averaged = 2.0 / stays * (1.0 - (1.0 - math.exp(-stays)) / stays)
        variance = batch_variance(batch, itl_s, empty_s) * 0.5 * (1.0 + burstiness)
        batch_s = (itl_s - empty_s) / batch * math.sqrt(variance * averaged)
    prompts_s = 0.0
    if local_s and steps:
        num_beside = local_per_s * steps * itl_s
        prompts_s = math.sqrt(num_beside * sum(one * one for one in local_s) / len(local_s)) / steps
    return math.sqrt((MIN_NOISE * mean_s) ** 2 + batch_s * batch_s + prompts_s * prompts_s)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
