"""Counts what happens to requests, for the planner's signals."""

from __future__ import annotations

from slipstream.router.dispatch.queue.work_queue import priority_class
from slipstream.router.protocol.generation import ErrorKind, GenerationFinish
from slipstream.router.requests.request_state import RequestState
from slipstream.router.status.signal_window import SignalWindow

LOAD_REFUSALS = ("queue_full", "deadline_unreachable")  # refusals that a larger cluster would have avoided


class RequestSignals:
    """Judges each request by its levels."""

    def __init__(self) -> None:
        self.window = SignalWindow()

    def arrived(self, state: RequestState, now: float) -> None:
        """It was let in."""
        self.window.arrived(priority_class(state.request), state.num_prompt_tokens, *state.levels, now)

    def refused(self, kind: ErrorKind, now: float) -> None:
        """It was not let in."""
        if kind in LOAD_REFUSALS:
            self.window.refused(now)

    def placed(self, state: RequestState, wait_s: float, now: float) -> None:
        """It had its first placement."""
        self.window.placed(wait_s, state.forecast.remaining(0) if state.forecast is not None else None, now)

    def first_token(self, state: RequestState, now: float) -> None:
        """The client got its first token."""
        self.window.first_token(
            priority_class(state.request),
            now - state.record.timeline.queued,
            state.levels.ttft_s,
            state.num_prompt_tokens,
            min(state.num_cached_tokens or 0, state.num_prompt_tokens),
            state.prefill is not None,
            now,
        )

    def ended(self, state: RequestState, finish: GenerationFinish, now: float) -> None:
        """The request has ended."""
        num_output_tokens, timeline = finish.usage.num_output_tokens, state.record.timeline
        if finish.reason == "error":
            self.window.failed(num_output_tokens, now)
        elif finish.reason == "abort" or timeline.first_token is None:
            self.window.left(num_output_tokens, now)
        else:
            itl_s = (now - timeline.first_token) / max(num_output_tokens - 1, 1)
            is_itl_met = itl_s <= state.levels.itl_s
            is_good = is_itl_met and timeline.first_token - timeline.queued <= state.levels.ttft_s
            priority = priority_class(state.request)
            self.window.finished(priority, num_output_tokens, state.forecast.mean, itl_s, is_itl_met, is_good, now)
