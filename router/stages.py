"""A record's events as what lay between them: attempts, and the stages of each. Explanations and spans are made of it.

queued      in the queue                                            until a place was found
reserve     remote only: the decode worker makes room               until it has
prefill     the prompt is computed                                  until the first token
transfer    remote only: what of the pages is still on its way then until the decode worker goes on
decode      the other tokens                                        until the end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.generation import Phase
from slipstream.router.history import MAX_EVENTS, RequestEvent, RequestRecord
from slipstream.router.placement.decision import Decision

StageName = Literal["queued", "reserve", "prefill", "transfer", "decode"]

# `reserved` and `first_token` are moments: something else begins with them.
STAGE_BEGUN_BY: dict[Phase, StageName] = {
    "queued": "queued",
    "placed": "reserve",
    "prefill": "prefill",
    "transfer": "transfer",
    "decode": "decode",
}


# An event, the one after it (None: there is none yet), and whether nothing is missing between them.
Begun = tuple[RequestEvent, RequestEvent | None, bool]


@dataclass(frozen=True, slots=True)
class Stage:
    """`end_s` None: it goes on. `where` names the workers at work in it. Times are those of the record."""

    name: StageName
    begin_s: float
    end_s: float | None
    where: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, or what became of it after it had moved to another decode worker, `moved_to`. `decision` is where it ran
    in the end, None if it never left the queue or moved. `failure` is why there had to be another one, or why there was
    none; empty if it is under way or has done its work."""

    number: int
    begin_s: float
    end_s: float | None
    decision: Decision | None
    stages: tuple[Stage, ...]
    failure: str
    moved_to: PeerId | None = None


def attempts_of(record: RequestRecord) -> list[Attempt]:
    """All tries, in order. Where the record has left out events, so do they."""
    events = record.events
    # The event after a gap is not what ended the stage before it.
    gap = MAX_EVENTS // 2 - 1 if record.num_events_left_out else None
    begun: list[Begun] = [(event, then, number != gap) for number, (event, then) in enumerate(pairwise(events))]
    if events and record.finish is None:
        begun.append((events[-1], None, True))
    return [_attempt(number, list(group), record) for number, group in groupby(begun, lambda one: one[0].attempt)]


def _attempt(number: int, begun: Sequence[Begun], record: RequestRecord) -> Attempt:
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
    return Attempt(
        number,
        begun[0][0].time_s,
        last.time_s if last is not None else None,
        decision,
        tuple(stages),
        last.detail if last is not None and failed and not has_moved else "",
        moved_to,
    )


def place(decision: Decision | None, stage: StageName) -> str:
    """Who has it in a stage."""
    if decision is None or stage == "queued":
        return ""
    decode = decision.decode.name
    if decision.prefill is None or stage in ("reserve", "decode"):
        return decode
    return decision.prefill.name if stage == "prefill" else f"{decision.prefill.name} -> {decode}"
