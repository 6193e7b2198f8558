"""Matches waiting requests with the credits of workers."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.router.dispatch.queue.work_queue import WorkQueue
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.placement.placer import Placer
from slipstream.router.placement.policies.spare_room import has_spare_room
from slipstream.router.protocol.generation import GenerationError
from slipstream.router.registry.capacity import refusal
from slipstream.router.registry.worker_registry import WorkerRegistry
from slipstream.router.requests.placement_decision import Placement, Wait
from slipstream.router.requests.request_state import RequestState

# How many requests may overtake one that does not fit, by using the credits that it waits for.
MAX_PASSED = 32
# How many requests that do not fit are skipped in search of one that does, which bounds the work per event.
LOOKAHEAD = 32


def match_credits(
    table: RequestTable,
    version: str,
    queue: WorkQueue,
    registry: WorkerRegistry,
    placer: Placer,
    start: Callable[[RequestState, Placement, float], None],
    now: float,
) -> float | None:
    """Starts the waiting requests of one version of the model, in order, as far as the credits reach.

    A request that does not fit is overtaken by others, but not for ever. One that lacks decode credits is delayed by
    every request that overtakes it, one that lacks prefill credits only by those that take prefill credits. After
    `MAX_PASSED` of these, no more requests of that kind are started, so that freed credits accumulate until it fits.

    Background work is started only on workers with spare room (`spare_room`), after all others.

    A request that could start now but waits for a better worker delays no other request. Returns the time at which the
    first of those will have waited long enough; None if there is none.
    """
    hold = placer.holds.queue_hold(version, queue.version, now)
    if hold is not None:
        return hold.wake_s
    passed: list[tuple[RequestState, Wait]] = []
    held_back: list[tuple[RequestState, Wait]] = []
    queue_version = queue.version
    has_room = True
    wake_s: float | None = None
    prefill_closed = False
    has_background = False
    for state in queue.candidates(now):
        if len(passed) + len(held_back) > LOOKAHEAD:
            break
        has_room = registry.has_decode_room(version)
        if not has_room:
            break
        if state.is_background and not has_spare_room(registry, version):
            has_background = True
            break
        found = placer.place(state, now, len(held_back))
        if isinstance(found, Placement) and found.prefill is not None and prefill_closed:
            found = Wait("prefill")
        if isinstance(found, Placement):
            start(state, found, now)
            for other, wait in passed:
                if wait.lacks == "decode" or found.prefill is not None:
                    other.num_passed += 1
        elif found.lacks == "worker":
            message = refusal(state.num_tokens, registry.workers_of("decode", version))
            assert message is not None
            table.finish(state, now, "error", error=GenerationError("prompt_too_long", message))
        elif found.saving_s is not None:
            held_back.append((state, found))
            until_s = placer.wait(state, found.saving_s, now)
            wake_s = until_s if wake_s is None else min(wake_s, until_s)
        else:
            passed.append((state, found))
        if not queue:
            break
        exhausted = {wait.lacks for other, wait in passed if other.num_passed >= MAX_PASSED}
        if "decode" in exhausted:
            break
        prefill_closed = "prefill" in exhausted
    if queue.version == queue_version:
        placer.holds.hold_queue(
            version, queue_version, wake_s, [*passed, *held_back], has_room, now, has_background=has_background
        )
    return wake_s
