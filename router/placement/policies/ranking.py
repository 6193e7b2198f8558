"""For policies that rate decode workers and prefill groups each on their own: a placement costs the sum of the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.router.placement.policies.estimate import estimate_decode, estimate_prefill, gap_s
from slipstream.router.placement.policies.policy import PlacementJob
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.registry.capacity import fits_decode, fits_prefill
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.placement_decision import (
    REMOTE_REASONS,
    Candidates,
    Decision,
    Option,
    Placement,
    PlacementReason,
    Wait,
    margin_of,
    where_to,
)

PAIRS = 8  # of each side, the best are shown with each other


@dataclass(frozen=True, slots=True)
class RankingRule:
    """How a policy rates. `decode` and `prefill` give the terms of a worker for the job and its cached tokens there,
    named `decode_terms` and `prefill_terms`; lower sums are better. `local` says why a prompt without a limit stays on
    a decode worker, given its uncached tokens there; None: it goes to a prefill group, because of `remote_reason`."""

    policy: str
    decode_terms: tuple[str, ...]
    prefill_terms: tuple[str, ...]
    decode: Callable[[WorkerState, PlacementJob, int], tuple[float, ...]]
    prefill: Callable[[WorkerState, PlacementJob, int], tuple[float, ...]]
    local: Callable[[PlacementJob, int, Shortlist], PlacementReason | None]
    remote_reason: PlacementReason = "policy_remote"


class RankedWorker(NamedTuple):
    cost: float
    worker: WorkerState
    fits: bool
    terms: tuple[float, ...]
    num_cached: int


def place_by(rule: RankingRule, job: PlacementJob, shortlist: Shortlist, now: float) -> Placement | Wait:
    """The cheapest placement that has room; of equal ones the one whose worker comes first."""
    num_tokens, cached = job.num_tokens, shortlist.cached
    decodes = _rate(rule.decode, shortlist.decodes, fits_decode, job, cached)
    groups = _best(_rate(rule.prefill, shortlist.prefills, fits_prefill, job, cached))
    no_prefill_terms = (0.0,) * len(rule.prefill_terms)
    options: list[Option] = []
    reasons: dict[WorkerState, PlacementReason] = {}
    remote: list[RankedWorker] = []
    forced = job.forced_reason(shortlist)
    for rated in decodes:
        reason = forced or rule.local(job, num_tokens - rated.num_cached, shortlist) or rule.remote_reason
        reasons[rated.worker] = reason
        if reason in REMOTE_REASONS:
            remote.append(rated)
        else:
            terms = rated.terms + no_prefill_terms
            options.append(Option(rated.cost, rated.worker, None, rated.fits, terms, rated.num_cached))
    for rated in _best(remote):
        for group in groups:
            if shortlist.no_link and (rated.worker, group.worker) in shortlist.no_link:
                continue
            fits = rated.fits and group.fits
            terms = rated.terms + group.terms
            cost = rated.cost + group.cost
            options.append(Option(cost, rated.worker, group.worker, fits, terms, group.num_cached))
    options.sort(key=lambda option: option[0])
    chosen = next((option for option in options if option.fits), None)
    if chosen is None:
        return Wait("prefill" if any(rated.fits for rated in remote) else "decode")
    return Placement(chosen.decode, chosen.prefill, _decision(rule, job, shortlist, options, chosen, reasons, now))


def _rate(
    rate: Callable[[WorkerState, PlacementJob, int], tuple[float, ...]],
    workers: Sequence[WorkerState],
    fits: Callable[[WorkerState, int, int], bool],
    job: PlacementJob,
    cached: dict[WorkerState, int],
) -> list[RankedWorker]:
    rated = []
    for worker in workers:
        num_cached = cached.get(worker, 0)
        terms = rate(worker, job, num_cached)
        has_room = worker is job.placed_on or fits(worker, job.num_tokens, job.most_tokens)
        rated.append(RankedWorker(sum(terms), worker, has_room, terms, num_cached))
    return rated


def _best(rated: list[RankedWorker]) -> list[RankedWorker]:
    """Those that fit before those that do not: these are only there to be shown."""
    if len(rated) <= PAIRS:
        return rated
    return sorted(rated, key=lambda one: (not one.fits, one.cost))[:PAIRS]


def _decision(
    rule: RankingRule,
    job: PlacementJob,
    shortlist: Shortlist,
    options: list[Option],
    chosen: Option,
    reasons: dict[WorkerState, PlacementReason],
    now: float,
) -> Decision:
    decode, prefill = chosen.decode, chosen.prefill
    there = estimate_decode(decode, job, now)
    step_s = there.step_s
    if prefill is None:
        first = estimate_prefill(decode, job, chosen.num_cached_tokens, now, there)
        ttft_s = first.queue_s + first.own_s
    else:
        first = estimate_prefill(prefill, job, chosen.num_cached_tokens, now)
        ttft_s = there.reserve_s + first.queue_s + first.own_s
        step_s += gap_s(decode, job, shortlist.cached.get(decode, 0)) / max(job.remaining_tokens, 1.0)
    reason = reasons[decode]
    num_fitting = sum(option.fits for option in options)
    return Decision(
        decode.hello.worker,
        None if prefill is None else prefill.hello.worker,
        reason,
        f"{where_to(decode, prefill)}: {reason}; {job.num_tokens - chosen.num_cached_tokens} of {job.num_tokens} "
        f"tokens to prefill; room on {num_fitting} of {len(options)} ways{job.limit_reason(reason)}",
        Candidates(options, rule.decode_terms + rule.prefill_terms, shortlist.excluded_pairs(decode)),
        rule.policy,
        margin_of(options, chosen),
        ttft_s,
        step_s,
        round(job.remaining_tokens),
    )
