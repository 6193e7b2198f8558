"""Matches waiting requests with credits."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.router.generation import GenerationError
from slipstream.router.placement.capacity import refusal
from slipstream.router.placement.decision import Placement, Wait
from slipstream.router.placement.placer import Placer
from slipstream.router.queue import WorkQueue
from slipstream.router.request_book import RequestBook
from slipstream.router.request_state import RequestState
from slipstream.router.roster import Roster

# So many requests may overtake one that does not fit and would want what they take; then it is its turn.
MAX_PASSED = 32
# So many waiting requests that do not fit are looked past for one that does, which bounds the work of an event.
LOOKAHEAD = 32
# A better worker is waited for at least so long, or a saving of nanoseconds would cost a turn of the loop each.
MIN_WAIT_S = 1e-3


def match_credits(
    book: RequestBook,
    version: str,
    lane: WorkQueue,
    roster: Roster,
    placer: Placer,
    start: Callable[[RequestState, Placement, float], None],
    now: float,
) -> float | None:
    """Starts the waiting requests of a version of the model in order, as far as credits go. One that does not fit is
    passed, but not for ever:

    a request that lacks decode credits is harmed by everybody who passes, one that lacks prefill credits only by
    those who take some of these. After `MAX_PASSED` of them nobody of that kind passes any more, and the credits that
    come free pile up until it fits.

    One that could go but waits for a better worker holds up nobody. Returns when the first of these has waited long
    enough, if any does.
    """
    stall = placer.waits.stall(version, lane.version, now)
    if stall is not None:
        return stall.wake_s
    passed: list[tuple[RequestState, Wait]] = []
    choosy: list[tuple[RequestState, Wait]] = []
    queue_version = lane.version
    has_room = True
    wake_s: float | None = None
    prefill_closed = False
    for state in lane.candidates(now):
        if len(passed) + len(choosy) > LOOKAHEAD:
            break
        has_room = roster.has_decode_room(version)
        if not has_room:
            break
        found = placer.place(state, now, len(choosy))
        if isinstance(found, Placement) and found.prefill is not None and prefill_closed:
            found = Wait("prefill")
        if isinstance(found, Placement):
            start(state, found, now)
            for other, wait in passed:
                if wait.lacks == "decode" or found.prefill is not None:
                    other.num_passed += 1
        elif found.lacks == "worker":
            message = refusal(state.num_tokens, roster.workers_of("decode", version))
            assert message is not None
            book.finish(state, now, "error", error=GenerationError("prompt_too_long", message))
        elif found.saving_s is not None:
            if state.wait_until_s is None:
                state.wait_until_s = now + max(found.saving_s, MIN_WAIT_S)
            choosy.append((state, found))
            wake_s = state.wait_until_s if wake_s is None else min(wake_s, state.wait_until_s)
        else:
            passed.append((state, found))
        if not lane:
            break
        exhausted = {wait.lacks for other, wait in passed if other.num_passed >= MAX_PASSED}
        if "decode" in exhausted:
            break
        prefill_closed = "prefill" in exhausted
    if lane.version == queue_version:
        placer.waits.note_stall(version, queue_version, wake_s, [*passed, *choosy], has_room, now)
    return wake_s
