"""The default policy: the cost of a placement for all requests together, in seconds.

For every possible placement of a request, all that it changes is added up: the seconds its own client waits, the
seconds that the clients already there wait longer, and the risk that one of them misses its service level. Nothing is
weighed against anything by hand. There is one exchange rate, and it is not a free one: an answer that misses its level
is worth nothing for goodput, so a miss costs as many seconds as the level allows the whole answer to take.

    room         s  until a slot and pages are free there (0: they are)
    reserve      s  until the decode worker has reserved pages (remote)
    queue        s  of the prompts ahead of it
    prefill      s  of its own prompt, with the decoding that shares its steps
    decode       s  of its own output, as many tokens as predicted, at the step time with it
    handoff      s  between first and second token that pages are still on their way (remote)
    ttft_risk    P(first token too late) x allowed seconds
    itl_risk     P(its own tokens too slow) x allowed seconds
    stall        s  that the streams there stand still while it prefills, all of them together (local)
    hiccup       s  by which steps with its chunks exceed the ITL level, for all streams (local)
    slowdown     s  that one more sequence adds to the remaining steps of those there
    others_risk  P(streams there become too slow because of it) x allowed seconds, for all of them
    next_prompts s  that prompts to come lose because of its prefill (`next_prompts.py`)
    overflow     s  to compute again what will be preempted if all sequences there grow as predicted
    affinity     s  saved by a later turn of the conversation that finds its KV here: half a step, which decides ties

So a prompt leaves its decode worker when the streams it would hold up together wait longer than it does by going; on an
idle decode worker it stays; when the prefill groups are overloaded it stays, too. A request whose level is lost already
changes nothing by being later still, and goes where it harms least.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TypeVar

from slipstream.router.config.router_config import SloConfig
from slipstream.router.placement.policies.estimate import (
    DecodeEstimate,
    PrefillEstimate,
    estimate_decode,
    estimate_prefill,
    gap_s,
)
from slipstream.router.placement.policies.next_prompts import NextPrompts
from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.placement_decision import (
    REMOTE_REASONS,
    Candidates,
    Decision,
    Option,
    Placement,
    PlacementReason,
    PromptTimes,
    Wait,
    margin_of,
    option_of,
    where_to,
)

TERMS = (
    *("room", "reserve", "queue", "prefill", "decode", "handoff", "ttft_risk", "itl_risk"),
    *("stall", "hiccup", "slowdown", "others_risk", "next_prompts", "overflow", "affinity"),
)
PAIRS = 4  # of each side, the best are tried with each other; what is worse on its own is not better together
LOCALS = 8  # of decode workers without anything cached, so many are looked at for local prefill
STEP_NOISE = 0.1  # relative, of a mean time between tokens

_RatedDecode = tuple[float, DecodeEstimate, tuple[float, float, float], int]
_RatedPrefill = tuple[float, PrefillEstimate, float]
RatedWorker = TypeVar("RatedWorker", _RatedDecode, _RatedPrefill)


def miss(value: float, level: float, noise: float) -> float:
    """The probability that what was predicted as `value` turns out above `level`; `noise` is relative. A logistic
    curve: it has the shape of the normal distribution's and costs less."""
    spread = noise * value
    if spread <= 0.0:
        return 0.0
    z = 1.7 * (level - value) / spread
    return 0.0 if z > 40.0 else 1.0 if z < -40.0 else 1.0 / (1.0 + math.exp(z))


def _allowed_s(job: PlacementJob) -> float:
    """What its own levels allow the whole answer to take."""
    return job.ttft_slo_s + job.remaining_tokens * job.itl_slo_s


class SloPolicy:
    """`levels` are taken to be those of the streams that a worker has already."""

    name = "slo"

    def __init__(self, levels: SloConfig) -> None:
        self._ttft_s = levels.ttft_ms / 1e3
        self._itl_s = levels.itl_ms / 1e3

    def place(self, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait:
        cached = shortlist.cached
        options: list[Option] = []
        decodes: list[_RatedDecode] = []
        prompts: dict[WorkerState, PrefillEstimate] = {}
        forced = job.forced_reason(shortlist)
        for worker in shortlist.decodes:
            there = estimate_decode(worker, job, now)
            harm = self._harm(job, there)
            cost = there.decode_s + there.room_s + harm[0] + harm[1] + harm[2]
            decodes.append((cost, there, harm, cached.get(worker, 0)))
        next_prompts = NextPrompts(self._ttft_s, self._ttft_s + job.remaining_tokens * self._itl_s)
        if forced not in REMOTE_REASONS:
            local = _local_candidates(decodes)
            for _, there, _, num_cached in local:
                beside = prompts[there.worker] = estimate_prefill(there.worker, job, num_cached, now, there)
                next_prompts.could_go_to(beside, there.num_streams)
            for _, there, harm, num_cached in local:
                terms = self._local(job, there, prompts[there.worker], harm[0], next_prompts, shortlist)
                options.append(option_of((sum(terms), there.worker, None, there.fits, terms, num_cached)))
        if forced is None or forced in REMOTE_REASONS:
            options += self._remote(job, decodes, next_prompts, shortlist, prompts, now)
        else:
            decodes = []
        if not options:
            return Wait("prefill")
        options.sort(key=_cost)
        best = options[0]
        chosen = best if best.fits else next((option for option in options if option[3]), None)
        if chosen is None:
            return Wait("prefill" if any(there.fits for _, there, _, _ in decodes) else "decode")
        if chosen is not best and job.may_wait:
            saving_s = chosen.cost - best.cost
            if best.prefill is None or best.terms[0] > 0.0:
                return Wait("decode", saving_s, best.decode)
            return Wait("prefill", saving_s, best.prefill)
        reason = forced or ("cheaper_local" if chosen.prefill is None else "cheaper_remote")
        prompt = prompts[chosen.decode if chosen.prefill is None else chosen.prefill]
        return self._placement(job, shortlist, options, chosen, reason, prompt)

    def _local(
        self,
        job: PlacementJob,
        there: DecodeEstimate,
        beside: PrefillEstimate,
        slowdown: float,
        next_prompts: NextPrompts,
        shortlist: Shortlist,
    ) -> tuple[float, ...]:
        room_s, queue_s, own_s, added_s = there.room_s, beside.queue_s, beside.own_s, beside.added_s
        num_streams, step_s, allowed_s = there.num_streams, there.step_s, _allowed_s(job)
        left_s = job.ttft_slo_s - job.waited_s
        over_s = beside.chunk_s - max(self._itl_s, there.step_before_s)
        return (
            room_s,
            0.0,
            queue_s,
            own_s,
            there.decode_s,
            0.0,
            allowed_s if left_s <= 0.0 else miss(room_s + queue_s + own_s, left_s, beside.noise) * allowed_s,
            miss(step_s, job.itl_slo_s, STEP_NOISE) * allowed_s,
            num_streams * added_s,
            num_streams * over_s * math.ceil(own_s / beside.chunk_s) if over_s > 0.0 else 0.0,
            slowdown,
            self._others_risk(there, added_s),
            next_prompts.loss_s(beside),
            there.overflow_s,
            -0.5 * step_s if there.worker in shortlist.session_workers else 0.0,
        )

    def _remote(
        self,
        job: PlacementJob,
        decodes: list[_RatedDecode],
        next_prompts: NextPrompts,
        shortlist: Shortlist,
        prompts: dict[WorkerState, PrefillEstimate],
        now: float,
    ) -> list[Option]:
        """The best groups, each with the best decode workers. Adds what is predicted for each group to `prompts`."""
        cached, session_workers = shortlist.cached, shortlist.session_workers
        groups: list[_RatedPrefill] = []
        for worker in shortlist.prefills:
            there = prompts[worker] = estimate_prefill(worker, job, cached.get(worker, 0), now)
            ttft_s = there.queue_s + there.own_s
            later = next_prompts.loss_s(there)
            groups.append((ttft_s + later, there, later))
        if len(groups) > PAIRS:
            groups = _best_of(groups)
        if len(decodes) > PAIRS:
            decodes = _best_of(decodes)
        options = []
        no_link, allowed_s, left_s = shortlist.no_link, _allowed_s(job), job.ttft_slo_s - job.waited_s
        is_late = left_s <= 0.0
        ends = [(g.worker, g.fits, g.queue_s, g.own_s, g.noise, g.num_cached, later) for _, g, later in groups]
        for _, decode, (slowdown, others_risk, overflow), num_cached in decodes:
            worker, fits, room_s, reserve_s, decode_s = (
                decode.worker,
                decode.fits,
                decode.room_s,
                decode.reserve_s,
                decode.decode_s,
            )
            handoff = gap_s(worker, job, num_cached)
            step_s = decode.step_s + handoff / max(job.remaining_tokens, 1.0)
            itl_risk = miss(step_s, job.itl_slo_s, STEP_NOISE) * allowed_s
            affinity = -0.5 * decode.step_s if worker in session_workers else 0.0
            for group, group_fits, queue_s, own_s, noise, num_group_cached, later in ends:
                if no_link and (worker, group) in no_link:
                    continue
                terms = (
                    room_s,
                    reserve_s,
                    queue_s,
                    own_s,
                    decode_s,
                    handoff,
                    allowed_s if is_late else miss(room_s + reserve_s + queue_s + own_s, left_s, noise) * allowed_s,
                    itl_risk,
                    0.0,
                    0.0,
                    slowdown,
                    others_risk,
                    later,
                    overflow,
                    affinity - 0.5 * decode.step_s if group in session_workers else affinity,
                )
                options.append(option_of((sum(terms), worker, group, fits and group_fits, terms, num_group_cached)))
        return options

    def _harm(self, job: PlacementJob, there: DecodeEstimate) -> tuple[float, float, float]:
        """What one more sequence costs those already there, in seconds: slowdown, risk, overflow."""
        num_here = there.num_here
        if not num_here:
            return 0.0, 0.0, there.overflow_s
        slower_s = max(there.step_s - there.step_before_s, 0.0)
        slowdown = num_here * min(there.their_remaining_tokens, job.remaining_tokens) * slower_s
        return slowdown, self._others_risk(there, 0.0), there.overflow_s

    def _others_risk(self, there: DecodeEstimate, added_s: float) -> float:
        """The risk, in seconds, that one more sequence and `added_s` seconds of prefill make the streams there too
        slow."""
        num_here = there.num_here
        if not num_here:
            return 0.0
        theirs, itl_s = there.their_remaining_tokens, self._itl_s
        more = miss(there.step_s + added_s / theirs, itl_s, STEP_NOISE) - miss(there.step_before_s, itl_s, STEP_NOISE)
        return num_here * more * (self._ttft_s + theirs * itl_s) if more > 0.0 else 0.0

    def _placement(
        self,
        job: PlacementJob,
        shortlist: Shortlist,
        options: list[Option],
        chosen: Option,
        reason: PlacementReason,
        prompt: PrefillEstimate,
    ) -> Placement:
        decode, prefill = chosen.decode, chosen.prefill
        margin = margin_of(options, chosen)
        room, reserve, queue, own, decoding, handoff = chosen.terms[:6]
        num_new = job.num_tokens - chosen.num_cached_tokens
        why = (
            f"{where_to(decode, prefill)}: {reason}; {num_new} of {job.num_tokens} tokens to prefill, "
            f"costs {chosen.cost:.3g} s"
        )
        if margin is not None and margin < 0:
            why += f", {-margin:.3g} s more than the best of {len(options)}, which has no room"
        elif margin is not None:
            why += f", {margin:.3g} s less than the next best of {len(options)}"
        why += job.limit_reason(reason)
        decision = Decision(
            decode.hello.worker,
            None if prefill is None else prefill.hello.worker,
            reason,
            why,
            Candidates(options, TERMS, shortlist.excluded_pairs(decode)),
            "slo",
            margin,
            room + reserve + queue + own,
            (decoding + handoff) / max(job.remaining_tokens, 1.0),
            round(job.remaining_tokens),
        )
        return Placement(decode, prefill, decision, PromptTimes(prompt.own_s, prompt.raw_s))


def _cost(option: Option) -> float:
    return option[0]


def _local_candidates(decodes: list[_RatedDecode]) -> list[_RatedDecode]:
    """For local prefill: those that are good to decode on, those with a short queue, and all with something cached."""
    if len(decodes) <= LOCALS:
        return decodes
    by_cost = sorted(decodes, key=itemgetter(0))[: LOCALS // 2]
    by_queue = sorted(decodes, key=lambda one: (not one[1].fits, one[1].worker.load.pending_tokens))[: LOCALS // 2]
    chosen = {one[1].worker: one for one in (*by_cost, *by_queue)}
    chosen.update({one[1].worker: one for one in decodes if one[3]})
    return list(chosen.values())


def _best_of(rated: list[RatedWorker]) -> list[RatedWorker]:
    """Those that cost least on their own, but at least one that fits if there is any."""
    rated = sorted(rated, key=itemgetter(0))
    best = rated[:PAIRS]
    if not any(one[1].fits for one in best):
        best += [one for one in rated[PAIRS:] if one[1].fits][:1]
    return best
