"""Tells workers which pages to keep, and for how long: those of conversations that will probably come back.

    arrived    a request goes on from one that has ended: how long did that pause, and for which tool?
    begin      it is placed: its pages are to be kept for a moment after its end, until more is known
    ended      it has ended, and its conversation may come back
    turn_ended its answer was read: it calls these tools, or none    -> Retain, with a time and a value

The value is in seconds, like everything else in placement: what computing the prompt again would take the worker, times
the share of such conversations that come back in time, for each page and second that they are expected to be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from slipstream.router.config.router_config import RetentionConfig
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.retention.pause_estimates import ANSWER, PauseEstimates, PauseForecast
from slipstream.router.placement.retention.paused_sessions import NUM_ENDS, PausedSession, PausedSessions
from slipstream.router.protocol.messages import Retain, RetentionHint
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.history import History, KeptPages
from slipstream.router.requests.request_state import RequestState
from slipstream.router.status.status import SessionEvent

GRACE_S = 5.0  # from the end of an answer until it was read, and the front has reported it
MIN_RETURN_SHARE = 0.5  # pages that are less likely to be used again in time are cached as any others
NOT_KEPT = PauseForecast(0.0, 0.0, 1.0)
CERTAIN = PauseForecast(120.0, 1.0, 1.0)  # of a request that has come: it waits for no longer than that in the queue
OLDEST_VERSION = 6  # of the protocol: older workers do not know hints

RetainMessage = tuple[WorkerState, Retain]


@dataclass(slots=True)
class _Tracked:
    """An unfinished request, what it goes on from, and where it was placed last."""

    continues: PausedSession | None
    workers: tuple[WorkerState, ...] = ()


class SessionRetention:
    """Of one model. Sans-IO."""

    def __init__(self, config: RetentionConfig, registry: WorkerRegistry, index: PrefixIndex, history: History) -> None:
        self._config = config
        self._registry = registry
        self._index = index
        self._history = history
        self._tracked: dict[str, _Tracked] = {}
        self.estimates = PauseEstimates()
        self.paused = PausedSessions()
        self.events: Counter[SessionEvent] = Counter()

    def follow(self, config: RetentionConfig) -> None:
        """Uses these settings from now on."""
        self._config = config

    def arrived(self, state: RequestState, now: float) -> list[RetainMessage]:
        """A request with a `Retention` has been let in. Returns what to tell the workers: that the pages which it goes
        on from are needed for certain, however long it has to wait."""
        for gone in self.paused.expire(now):
            if gone.tool is not None:
                self.events["gone"] += 1
                self.estimates.learn(gone.tenant, gone.tool, None)
        if not self._config.enabled:
            return []
        before = self.paused.take(self._index.blocks_of(state))
        if before is not None:
            self.events["returned"] += 1
            state.record.continues = before.request_id
            if before.tool is not None:
                self.estimates.learn(before.tenant, before.tool, now - before.ended_s)
        self._tracked[state.request_id] = _Tracked(before)
        return [] if before is None else self._retain_messages(before, CERTAIN, is_pinned=True)

    def begin(self, state: RequestState, workers: Sequence[WorkerState]) -> list[RetainMessage]:
        """It is placed on these workers. Returns what to tell others."""
        tracked = self._tracked.get(state.request_id)
        if tracked is None:
            return []
        tracked.workers = tuple(workers)
        request, config, before = state.request, self._config, tracked.continues
        assert request.retention is not None
        pinned_s = min(request.retention.pinned_s, config.max_pin_s)
        keep_s = pinned_s or GRACE_S
        value = _value(workers[-1], state.num_tokens, PauseForecast(keep_s, 1.0, keep_s))
        state.retention = RetentionHint(keep_s, value, request.tenant, pinned_s > 0.0)
        if before is None:
            return []
        peers = [worker.peer for worker in workers]
        if any(peer in peers for peer in before.peers):
            state.retention = state.retention._replace(continues=before.request_id)
        before.peers = tuple([peer for peer in before.peers if peer not in peers])
        return self._retain_messages(before, NOT_KEPT)

    def ended(self, state: RequestState, now: float, *, is_whole: bool) -> None:
        """It is over; what is not `is_whole` has failed, or its client has left."""
        tracked = self._tracked.pop(state.request_id, None)
        if tracked is None or not is_whole:
            return
        blocks = self._index.blocks_of(state)
        num_blocks = state.num_prompt_tokens // tracked.workers[0].hello.cached_block_tokens if tracked.workers else 0
        if not num_blocks:
            return
        first = (state.decode.peer,) if state.decode is not None else ()
        peers = (*first, *(worker.peer for worker in tracked.workers if worker.hello.role == "prefill"))
        self.paused.add(
            PausedSession(
                state.request_id,
                state.request.tenant,
                state.num_tokens,
                now,
                peers,
                tuple(blocks[max(num_blocks - NUM_ENDS, 0) : num_blocks]),
            )
        )
        pinned_s = state.request.retention.pinned_s if state.request.retention is not None else 0.0
        if pinned_s:
            keep_s = min(pinned_s, self._config.max_pin_s)
            state.record.kept = KeptPages(now, keep_s, state.num_tokens, "", 1.0, is_pinned=True)

    def turn_ended(self, request_id: str, tools: Sequence[str], now: float) -> list[RetainMessage]:
        """The answer of a request that has ended calls these tools. Returns what to tell the workers."""
        session = self.paused.get(request_id)
        if session is None or session.tool is not None or not self._config.enabled:
            return []
        forecasts = [(self._forecast(session.tenant, tool), tool) for tool in tools or (ANSWER,)]
        forecast, session.tool = max(forecasts)  # the slowest is waited for
        record = self._history.get(request_id)
        if record is not None and record.kept is not None:
            return []  # its client has said how long
        keep_s = forecast.keep_s if forecast.return_share >= MIN_RETURN_SHARE else 0.0
        if record is not None:
            record.kept = KeptPages(now, keep_s, session.num_tokens, session.tool, forecast.return_share)
        self.events["kept" if keep_s > 0.0 else "not_kept"] += 1
        return self._retain_messages(session, forecast if keep_s else NOT_KEPT)

    def _retain_messages(
        self, session: PausedSession, forecast: PauseForecast, is_pinned: bool = False
    ) -> list[RetainMessage]:
        messages = []
        for peer in session.peers:
            worker = self._registry.get(peer)
            if _knows_hints(worker):
                value = _value(worker, session.num_tokens, forecast)
                hint = RetentionHint(forecast.keep_s, value, session.tenant, is_pinned)
                messages.append((worker, Retain(session.request_id, hint)))
        return messages

    def _forecast(self, tenant: str, tool: str) -> PauseForecast:
        return self.estimates.forecast(tenant, tool, self._config.max_keep_s)


def _knows_hints(worker: WorkerState | None) -> TypeGuard[WorkerState]:
    return worker is not None and worker.hello.prefix_caching and worker.hello.version >= OLDEST_VERSION


def _value(worker: WorkerState, num_tokens: int, forecast: PauseForecast) -> float:
    """Seconds of prefill that a page saves, by each second that it is kept."""
    times, num_pages = worker.times, worker.pages_for(num_tokens)
    chunk_s, token_s, pair_s = times.prefill
    chunks = num_tokens / worker.hello.max_step_tokens
    prefill_s = times.correction * (chunks * chunk_s + num_tokens * token_s + 0.5 * num_tokens * num_tokens * pair_s)
    return forecast.return_share * prefill_s / (max(num_pages, 1) * max(forecast.mean_s, 1e-3))
