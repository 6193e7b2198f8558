"""Turns a record's events, which are moments, into what lay between them: attempts and the stages of each.

Explanations and spans are made from these. The stages:

queued      in the queue                                        until the request was placed
reserve     remote only: the decode worker reserves pages       until it has
prefill     the prompt is computed                              until the first token
transfer    remote only: the remaining pages are on their way   until the decode worker continues
decode      the other tokens are generated                      until the end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.generation import Phase
from slipstream.router.requests.history import MAX_EVENTS, RequestEvent, RequestRecord
from slipstream.router.requests.placement_decision import Decision

StageName = Literal["queued", "reserve", "prefill", "transfer", "decode"]

# The stage that begins with each event. None begins with `reserved` or `first_token`: another event comes with them.
STAGE_BEGUN_BY: dict[Phase, StageName] = {
    "queued": "queued",
    "placed": "reserve",
    "prefill": "prefill",
    "transfer": "transfer",
    "decode": "decode",
}


# An event, the one after it (None: there is none yet), and whether the two are truly neighbours, with none left out.
Begun = tuple[RequestEvent, RequestEvent | None, bool]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of an attempt. `end_s` None: it has not ended. `where` names the workers involved. Times are in the
    record's clock."""

    name: StageName
    begin_s: float
    end_s: float | None
    where: str


@dataclass(frozen=True, slots=True)
class AttemptStages:
    """One attempt, or its continuation after a migration to another decode worker, `moved_to`. `decision` is the
    placement that it ran by; None if it never left the queue, or continues after a migration. `failure` is why it
    failed; empty if it is under way or succeeded."""

    number: int
    begin_s: float
    end_s: float | None
    decision: Decision | None
    stages: tuple[Stage, ...]
    failure: str
    moved_to: PeerId | None = None


def attempts_of(record: RequestRecord) -> list[AttemptStages]:
    """All attempts, in order. Where the record has left out events, stages and attempts are missing too."""
    events = record.events
    # The event after a gap is not the one that ended the stage before the gap.
    gap = MAX_EVENTS // 2 - 1 if record.num_events_left_out else None
    begun: list[Begun] = [(event, then, number != gap) for number, (event, then) in enumerate(pairwise(events))]
    if events and record.finish is None:
        begun.append((events[-1], None, True))
    return [_attempt(number, list(group), record) for number, group in groupby(begun, lambda one: one[0].attempt)]


def _attempt(number: int, begun: Sequence[Begun], record: RequestRecord) -> AttemptStages:
    decision: Decision | None = None
    moved_to = begun[0][0].moved_to
    stages = []
    for event, then, is_whole in begun:
        decision = event.decision or decision
        name = STAGE_BEGUN_BY.get(event.phase)
        goes_on_at_once = event.phase == "placed" and then is not None and then.phase == "prefill"
        if name is not None and is_whole and not goes_on_at_once:
            where = place(decision, name) if moved_to is None else moved_to.name
            stages.append(Stage(name, event.time_s, then.time_s if then is not None else None, where))
    last = begun[-1][1]
    has_moved = last is not None and last.attempt != number and last.moved_to is not None
    failed = last is not None and (last.attempt != number or (record.finish is not None and record.finish.error))
    return AttemptStages(
        number,
        begun[0][0].time_s,
        last.time_s if last is not None else None,
        decision,
        tuple(stages),
        last.detail if last is not None and failed and not has_moved else "",
        moved_to,
    )


def place(decision: Decision | None, stage: StageName) -> str:
    """The names of the workers that are involved in a stage."""
    if decision is None or stage == "queued":
        return ""
    decode = decision.decode.name
    if decision.prefill is None or stage in ("reserve", "decode"):
        return decode
    return decision.prefill.name if stage == "prefill" else f"{decision.prefill.name} -> {decode}"
