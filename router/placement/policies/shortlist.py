"""The candidates for a request: a bounded number of workers of each role, however many there are.

Of the workers of its version of the model those with most of its tokens cached, the one where its conversation ran, and
those with most room. Of these, the workers that could ever hold it and have not failed it before. This part is the same
for all policies; they only rank.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.placement.policies.spare_room import has_spare_queue, has_spare_slot
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.broken_links import Links
from slipstream.router.registry.capacity import can_ever_hold
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.placement_decision import PlacementReason
from slipstream.router.requests.request_state import RequestState

MAX_UNREACHABLE = 2  # attempts whose workers could not reach each other; then the decode worker prefills

# Of many workers that nothing but their room speaks for, those with most of it: the next ones are hardly any better.
FRESH = 4
FEW = 16  # workers of a side are all looked at


class PrefixView(Protocol):
    """The part of the prefix index that placement uses."""

    def best(self, state: RequestState, role: Role, limit: int) -> list[tuple[WorkerState, int]]: ...

    def held_tokens(self, worker: WorkerState, state: RequestState) -> int: ...


class SessionView(Protocol):
    """The part of the table of conversations that placement uses."""

    def worker_of(self, session: str, role: Role, tenant: str = "") -> WorkerState | None: ...


@dataclass(slots=True)
class Shortlist:
    """`cached` are leading tokens that a worker's cache holds, of workers that hold some. `no_prefill` says why
    `prefills` is empty. `session_workers` are workers on which the conversation ran last, `excluded` those that failed
    the request before."""

    decodes: list[WorkerState]
    prefills: list[WorkerState]
    no_prefill: PlacementReason | None = None
    cached: dict[WorkerState, int] = field(default_factory=dict)
    session_workers: frozenset[WorkerState] = frozenset()
    excluded: tuple[WorkerState, ...] = ()
    num_decodes: int = 0  # connected, not only those here
    num_prefills: int = 0
    no_link: frozenset[tuple[WorkerState, WorkerState]] = frozenset()  # (decode, prefill), out of reach of each other

    def excluded_pairs(self, decode: WorkerState) -> list[tuple[PeerId, PeerId | None]]:
        """As (decode, prefill), where `decode` is the one that was chosen."""
        return [(w.peer, None) if w.hello.role == "decode" else (decode.peer, w.peer) for w in self.excluded]


def reachable(candidates: Shortlist, state: RequestState, links: Links, now: float) -> Shortlist:
    """The shortlist without pairs of workers that cannot exchange pages now."""
    if not candidates.prefills or not (links.may_refuse or state.num_unreachable):
        return candidates
    no_link = [
        (decode, group)
        for group in candidates.prefills
        for decode in candidates.decodes
        if not links.is_open(group.hello, decode.hello, now)
    ]
    if state.num_unreachable >= MAX_UNREACHABLE:
        groups = []
    else:
        groups = [g for g in candidates.prefills if any((d, g) not in no_link for d in candidates.decodes)]
    no_prefill = candidates.no_prefill
    if not groups:
        ever = any(links.fits(g.hello, d.hello) for g in candidates.prefills for d in candidates.decodes)
        no_prefill = "prefill_unreachable" if ever else "prefill_incompatible"
    return replace(candidates, prefills=groups, no_prefill=no_prefill, no_link=frozenset(no_link))


def spare(candidates: Shortlist) -> Shortlist:
    """The shortlist of background work: without workers whose room is kept for requests that clients wait for. If all
    prefill groups are busy, the decode worker prefills."""
    decodes = [worker for worker in candidates.decodes if has_spare_slot(worker)]
    prefills = [group for group in candidates.prefills if has_spare_queue(group)]
    no_prefill = candidates.no_prefill
    if candidates.prefills and not prefills:
        no_prefill = "prefill_busy"
    return replace(candidates, decodes=decodes, prefills=prefills, no_prefill=no_prefill)


def shortlist(
    state: RequestState, registry: WorkerRegistry, index: PrefixView, sessions: SessionView, max_candidates: int
) -> Shortlist:
    """`decodes` is empty if no worker could ever hold the request.

    Workers that failed it are used only where no other could serve it; a prefill group that failed it never, because
    the decode worker can prefill."""
    num_tokens, avoid = state.num_tokens, state.failed_on
    version, session = state.version, state.request.session
    all_decodes, all_prefills = registry.workers_of("decode", version), registry.workers_of("prefill", version)
    cached: dict[WorkerState, int] = {}
    session_workers: list[WorkerState] = []
    found: list[list[WorkerState]] = []
    sides: tuple[tuple[Role, list[WorkerState]], ...] = (("decode", all_decodes), ("prefill", all_prefills))
    for role, all_workers in sides:
        hits = index.best(state, role, max_candidates // 2)
        if role == "prefill":  # where prompts are computed in the order they come: what is expected will be there
            cached.update(hits)
        else:
            cached.update([(worker, held) for worker, _ in hits if (held := index.held_tokens(worker, state))])
        known = sessions.worker_of(session, role, state.request.tenant) if session else None
        if known is not None and known.version != version:
            known = None
        if known is not None:
            session_workers.append(known)
        if len(all_workers) <= min(max_candidates, FEW):
            found.append(all_workers)
            continue
        first = dict.fromkeys([worker for worker, _ in hits])
        if known is not None:
            first[known] = None
        most = min(max_candidates, len(first) + FRESH)
        for worker in registry.in_order(role, version):
            if len(first) >= most:
                break
            first[worker] = None
        found.append(list(first))
    decodes = [w for w in found[0] if can_ever_hold(w, num_tokens)]
    if not decodes and len(all_decodes) > max_candidates:  # a prompt for the largest workers only
        decodes = [w for w in all_decodes if can_ever_hold(w, num_tokens)][:max_candidates]
    excluded: tuple[WorkerState, ...] = ()
    if avoid:
        others = [w for w in decodes if w.peer not in avoid]
        excluded = tuple(w for w in (*(decodes if others else ()), *found[1]) if w.peer in avoid)
        decodes = others or decodes
    prefills, no_prefill = _prefills(found[1], all_prefills, num_tokens, avoid, max_candidates)
    return Shortlist(
        decodes, prefills, no_prefill, cached, frozenset(session_workers), excluded, len(all_decodes), len(all_prefills)
    )


def _prefills(
    candidates: list[WorkerState],
    all_workers: list[WorkerState],
    num_tokens: int,
    avoid: Set[PeerId],
    max_candidates: int,
) -> tuple[list[WorkerState], PlacementReason | None]:
    if not all_workers:
        return [], "no_prefill_group"
    large = [g for g in candidates if can_ever_hold(g, num_tokens)]
    if not large and len(all_workers) > max_candidates:
        large = [g for g in all_workers if can_ever_hold(g, num_tokens)][:max_candidates]
    if not large:
        return [], "prefill_too_small"
    if avoid:
        large = [g for g in large if g.peer not in avoid]
        if not large:
            return [], "prefill_failed"
    return large, None
