"""Short prompts stay, long ones go: the line is a number of tokens to prefill.

Sending small prompts away does not pay: their transfer and the extra hop cost more than the prefill. NVIDIA
Dynamo's conditional disaggregation draws the line the same way, at a number of uncached tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.placement.capacity import can_ever_hold, fits_decode, fits_prefill
from slipstream.router.placement.decision import Candidate, Decision, Placement, PlacementReason, Wait
from slipstream.router.roster import WorkerState


def _decode_score(worker: WorkerState) -> float:
    hello, ledger = worker.hello, worker.ledger
    return min(ledger.free_slots / hello.max_slots, ledger.free_pages / hello.num_pages)


def _prefer(workers: list[WorkerState], avoid: frozenset[PeerId] | set[PeerId]) -> list[WorkerState]:
    return [w for w in workers if w.peer not in avoid] or workers


def place(
    num_tokens: int,
    avoid: frozenset[PeerId] | set[PeerId],
    decode_workers: Sequence[WorkerState],
    prefill_groups: Sequence[WorkerState],
    local_prefill_max_tokens: int,
) -> Placement | Wait:
    """Decides for a request of `num_tokens` (prompt and output so far).

    `avoid` are workers that failed this request before: taken only where nobody else could ever do it. The decode
    worker with the largest free share of slots and pages wins, and the prefill group with most free tokens.
    """
    capable = [w for w in decode_workers if can_ever_hold(w, num_tokens)]
    if not capable:
        return Wait("worker")
    decodes = _prefer(capable, avoid)
    fitting = [w for w in decodes if fits_decode(w, num_tokens)]
    if not fitting:
        return Wait("decode")
    decode = max(fitting, key=_decode_score)

    groups: list[WorkerState] = []
    no_group: list[WorkerState | None] = [None]
    reason: PlacementReason
    if num_tokens <= local_prefill_max_tokens:
        reason = "short_prompt"
    elif not prefill_groups:
        reason = "no_prefill_group"
    elif not (large := [g for g in prefill_groups if can_ever_hold(g, num_tokens)]):
        reason = "prefill_too_small"
    elif not (groups := [g for g in large if g.peer not in avoid]):
        reason = "prefill_failed"
    else:
        reason = "long_prompt"
    fitting_groups = [g for g in groups if fits_prefill(g, num_tokens)]
    if groups and not fitting_groups:
        return Wait("prefill")
    prefill = max(fitting_groups, key=lambda g: g.ledger.free_tokens) if groups else None

    return Placement(
        decode,
        prefill,
        Decision(
            decode=decode.peer,
            prefill=prefill.peer if prefill is not None else None,
            reason=reason,
            why=_explain(
                reason,
                f"{prefill.name} -> {decode.name}" if prefill is not None else decode.name,
                f"{num_tokens} tokens to prefill, local up to {local_prefill_max_tokens}; room at "
                f"{len(fitting)} of {len(decode_workers)} decode workers and "
                f"{len(fitting_groups)} of {len(prefill_groups)} prefill groups",
            ),
            candidates=tuple(
                Candidate(
                    decode=w.peer,
                    prefill=g.peer if g is not None else None,
                    cost=-_decode_score(w),
                    fits=fits_decode(w, num_tokens) and (g is None or fits_prefill(g, num_tokens)),
                )
                for w in decodes
                for g in (groups or no_group)
            ),
            policy="isl_threshold",
        ),
    )


def cached_prefix_decision(decode: WorkerState, num_tokens: int, num_cached_tokens: int) -> Decision:
    """The decision to prefill on the decode worker after all, because its cache holds most of the prompt."""
    return Decision(
        decode=decode.peer,
        prefill=None,
        reason="cached_prefix",
        why=_explain(
            "cached_prefix", decode.name, f"{num_cached_tokens} of {num_tokens} tokens are in its prefix cache"
        ),
        candidates=(),
    )


def _explain(reason: PlacementReason, where: str, facts: str) -> str:
    return f"{'remote' if reason == 'long_prompt' else 'local'} on {where}: {reason}; {facts}"
