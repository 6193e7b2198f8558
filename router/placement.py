"""Where a request runs: a pure function of its size and of what the workers have free.

    local    the decode worker prefills in chunks beside its decoding
    remote   a prefill group computes the prompt, its pages move to the decode worker
    wait     it fits nobody now

Sending small prompts away does not pay: their transfer and the extra hop cost more than the prefill. NVIDIA
Dynamo's conditional disaggregation draws the line the same way, at a number of uncached tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.credits import Charge
from slipstream.router.messages import Role
from slipstream.router.roster import WorkerState

PlacementReason = Literal[
    "short_prompt",  # local: few tokens to prefill
    "no_prefill_group",  # local: none is connected, so that the service goes on
    "prefill_too_small",  # local: no prefill group could ever hold it
    "prefill_failed",  # local: it failed on every prefill group before
    "cached_prefix",  # local after all: the reservation found most of the prompt cached
    "long_prompt",  # remote
]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that was looked at. `score`: the higher the freer; `fits`: it had the credits."""

    worker: PeerId
    role: Role
    score: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided and why, in plain values that outlive the workers."""

    decode: PeerId
    prefill: PeerId | None
    reason: PlacementReason
    why: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. `prefill` is None for local prefill."""

    decode: WorkerState
    prefill: WorkerState | None
    decision: Decision


@dataclass(frozen=True, slots=True)
class Wait:
    """It does not fit now. `lacks` is the side whose credits are missing; "worker": there is none of decode."""

    lacks: Literal["worker", "decode", "prefill"]


def decode_charge(worker: WorkerState, num_tokens: int) -> Charge:
    """What a sequence of `num_tokens` takes of a decode worker: their pages and room for one more token."""
    return Charge(slots=1, pages=worker.pages_for(num_tokens + 1))


def prefill_charge(worker: WorkerState, num_tokens: int) -> Charge:
    """What a prefill of `num_tokens` takes of a prefill group: pages and its queue's tokens."""
    return Charge(pages=worker.pages_for(num_tokens), tokens=num_tokens)


def can_ever_hold(worker: WorkerState, num_tokens: int) -> bool:
    """Whether the worker, idle, has room for the tokens and one more."""
    return num_tokens < worker.hello.max_model_len and worker.pages_for(num_tokens + 1) <= worker.hello.num_pages


def refusal(num_tokens: int, decode_workers: Sequence[WorkerState]) -> str | None:
    """Why no decode worker could ever take the request; None if one could, or if none is there to ask."""
    if not decode_workers or any(can_ever_hold(worker, num_tokens) for worker in decode_workers):
        return None
    longest = max(min(w.hello.max_model_len, w.hello.num_pages * w.hello.page_tokens) for w in decode_workers)
    return f"a sequence of {num_tokens} tokens leaves no room for output: at most {longest} tokens fit"


def _fits_decode(worker: WorkerState, num_tokens: int) -> bool:
    return worker.ledger.free_slots >= 1 and worker.ledger.free_pages >= worker.pages_for(num_tokens + 1)


def _fits_prefill(worker: WorkerState, num_tokens: int) -> bool:
    # An idle group takes any prompt that fits its pages, even one longer than its queue is meant to be.
    ledger = worker.ledger
    return ledger.free_pages >= worker.pages_for(num_tokens) and ledger.free_tokens >= min(
        num_tokens, worker.hello.max_queued_tokens
    )


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
    fitting = [w for w in decodes if _fits_decode(w, num_tokens)]
    if not fitting:
        return Wait("decode")
    decode = max(fitting, key=_decode_score)

    groups: list[WorkerState] = []
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
    fitting_groups = [g for g in groups if _fits_prefill(g, num_tokens)]
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
            candidates=(
                *(Candidate(w.peer, "decode", _decode_score(w), _fits_decode(w, num_tokens)) for w in decodes),
                *(
                    Candidate(g.peer, "prefill", float(g.ledger.free_tokens), _fits_prefill(g, num_tokens))
                    for g in groups
                ),
            ),
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
