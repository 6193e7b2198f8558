"""Which requests have to wait, and for what, so that a queue is not rated anew with every message from a worker.

Rating a request looks at dozens of workers. Whether it still has to wait can mostly be seen from a few: those with most
room on the side that it lacks, or the one worker that it waits for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.router.placement.placed_request import PlacedRequests
from slipstream.router.placement.policies.spare_room import has_spare_room
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.capacity import fits_decode, fits_prefill
from slipstream.router.registry.worker_registry import FEW, WorkerRegistry, WorkerState
from slipstream.router.requests.placement_decision import Wait
from slipstream.router.requests.request_state import RequestState

MAX_KNOWN = 4096
# Loads, prefixes and workers change, too. So a waiting request is rated again after the first of these times, and then
# ever more rarely, up to the second.
RATED_AGAIN_S, RATED_AT_LEAST_S = 0.05, 1.0


@dataclass(slots=True)
class Hold:
    """A look at a queue that placed nothing. Another look is worth it when the queue has changed, at `until_s`, or when
    there is room: `tokens` are the fewest tokens, and the fewest in the end, of the requests that wait for each side,
    `better` are the workers that single requests wait for, with the same of these. `wake_s`: see `match_credits`."""

    queue_version: int
    wake_s: float | None
    until_s: float
    tokens: dict[Role, tuple[int, int]]
    better: list[tuple[WorkerState, int, int]]
    has_background: bool = False  # which waits for spare room


class HoldPolicy:
    """Sans-IO, and bounded: a request that is forgotten is merely rated again."""

    def __init__(self, registry: WorkerRegistry, placed: PlacedRequests) -> None:
        self._registry = registry
        self._placed = placed
        self._queue_holds: dict[str, Hold] = {}  # by version of the model
        self._known: OrderedDict[str, tuple[int, Wait, float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def request_hold(self, state: RequestState, now: float) -> Wait | None:
        """The last answer for the request, if it still holds; None: the request has to be rated."""
        known = self._known.get(state.request_id)
        if known is None:
            return None
        attempt, wait, until_s, _ = known
        if attempt != state.attempt or now >= until_s:
            return None
        if wait.saving_s is not None:
            wait_until_s = self._placed.of(state).wait_until_s
            if wait_until_s is None or now >= wait_until_s:
                return None
        better = wait.better
        role = _side(wait)
        workers = [better] if better is not None else self._registry.least_loaded(role, FEW, state.version)
        fits, num_tokens, most_tokens = FITS[role], state.num_tokens, state.most_tokens
        return None if any(fits(worker, num_tokens, most_tokens) for worker in workers) else wait

    def queue_hold(self, version: str, queue_version: int, now: float) -> Hold | None:
        """The last look at the queue of a version, if it still holds; None: the queue has to be looked at."""
        hold = self._queue_holds.get(version)
        if hold is None or hold.queue_version != queue_version or now >= hold.until_s:
            return None
        for role, (num_tokens, most_tokens) in hold.tokens.items():
            fits = FITS[role]
            if any(fits(worker, num_tokens, most_tokens) for worker in self._registry.least_loaded(role, FEW, version)):
                return None
        if any(FITS[worker.hello.role](worker, *size) for worker, *size in hold.better):
            return None
        if hold.has_background and has_spare_room(self._registry, version):
            return None
        return hold

    def hold_queue(
        self,
        version: str,
        queue_version: int,
        wake_s: float | None,
        waiting: Sequence[tuple[RequestState, Wait]],
        has_decode_room: bool,
        now: float,
        *,
        has_background: bool = False,
    ) -> None:
        """A look at the queue has placed nothing: the requests in `waiting` have to wait. If no decode worker had room
        at all, there may be others behind them that were not rated. With `has_background`, background work waits for
        spare room."""
        until_s = now + RATED_AT_LEAST_S if wake_s is None else min(now + RATED_AT_LEAST_S, wake_s)
        tokens: dict[Role, tuple[int, int]] = {} if has_decode_room else {"decode": (0, 0)}
        better = []
        for state, wait in waiting:
            known = self._known.get(state.request_id)
            if known is None:
                return  # it would fit, and is held back only for the sake of others
            until_s = min(until_s, known[2])
            if wait.better is not None:
                better.append((wait.better, state.num_tokens, state.most_tokens))
            else:
                role, num_tokens, most_tokens = _side(wait), state.num_tokens, state.most_tokens
                fewest, fewest_in_the_end = tokens.get(role, (num_tokens, most_tokens))
                tokens[role] = min(fewest, num_tokens), min(fewest_in_the_end, most_tokens)
        self._queue_holds[version] = Hold(queue_version, wake_s, until_s, tokens, better, has_background)

    def hold_request(self, state: RequestState, wait: Wait, now: float) -> None:
        """The request has been rated, and has to wait."""
        if wait.lacks == "worker":
            return
        known = self._known.get(state.request_id)
        again_s = RATED_AGAIN_S if known is None or known[0] != state.attempt else min(2 * known[3], RATED_AT_LEAST_S)
        self._known[state.request_id] = (state.attempt, wait, now + again_s, again_s)
        self._known.move_to_end(state.request_id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def release(self, request_id: str) -> None:
        """It has been placed."""
        self._known.pop(request_id, None)


FITS: dict[Role, Callable[[WorkerState, int, int], bool]] = {"decode": fits_decode, "prefill": fits_prefill}


def _side(wait: Wait) -> Role:
    return "decode" if wait.lacks == "decode" else "prefill"
