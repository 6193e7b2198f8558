"""Keeps the load of workers in step with the requests placed on them, and teaches their service times what was seen.

What a request adds to a worker's load at one stage is taken back at a later one; `leave` takes back all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.registry.worker_load import PendingPrefill
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState


def placed(state: RequestState, decode: WorkerState, expected_output_tokens: float, now: float) -> None:
    """The request will decode on the worker."""
    state.expected_output_tokens = expected_output_tokens
    state.placed_s = now
    decode.load.add_sequence(state.num_tokens, expected_output_tokens - len(state.output))


def prefill_placed(state: RequestState, worker: WorkerState, pending: PendingPrefill) -> None:
    """The worker is to compute the prompt: a prefill group, perhaps before it gets the message, or the decode
    worker."""
    assert state.pending is None
    state.pending, state.pending_on = pending, worker
    worker.load.begin_prefill(pending)


def reserved(state: RequestState, num_pages: int, now: float) -> None:
    """The decode worker has reserved pages, and the prefill group starts."""
    state.transfer_pages = num_pages
    if state.decode is not None and state.placed_s is not None:
        state.decode.times.observe_reserve(now - state.placed_s)
    if state.pending is not None:
        state.pending.begun_s = now


def prefill_withdrawn(state: RequestState) -> None:
    """The prompt is no longer to be computed on that worker: it is done, or goes elsewhere, or the request ended."""
    if state.pending is not None and state.pending_on is not None:
        state.pending_on.load.end_prefill(state.pending)
    state.pending = state.pending_on = None


def tokens_came(state: RequestState, count: int, now: float) -> None:
    """`count` new tokens came. To be called for all of them; the first of an attempt end its prefill."""
    decode = state.decode
    if decode is None:
        return
    load = decode.load
    load.context_tokens += count
    load.remaining_tokens -= count
    pending = state.pending
    if pending is not None and state.pending_on is not None:
        state.pending_on.times.observe_first_token(pending.predicted_s, now - pending.begun_s)
        prefill_withdrawn(state)
        state.first_token_s = now
        if state.handed_off:
            _observe_gap(state, 0.0)


def handed_off(state: RequestState, seconds: float, now: float) -> None:
    """The decode worker has all pages; the transfer took `seconds` by its own clock."""
    if state.decode is None or state.transfer_pages is None:
        return
    state.decode.times.observe_transfer(state.transfer_pages, seconds)
    if state.first_token_s is not None:
        _observe_gap(state, now - state.first_token_s)


def decoding(state: RequestState) -> None:
    """The request is past its prefill, and its decode worker has all pages."""
    if state.decode is not None and not state.is_decoding:
        state.is_decoding = True
        state.decode.load.num_running += 1


def moved(state: RequestState, destination: WorkerState, is_whole: bool) -> None:
    """The request belongs to another decode worker from now on; `is_whole`: that worker has all pages already. To be
    called while `state.decode` is still the old one."""
    source, remaining = state.decode, state.expected_output_tokens - len(state.output)
    assert source is not None
    source.load.remove_sequence(state.num_tokens, remaining)
    source.load.num_running -= 1
    destination.load.add_sequence(state.num_tokens, remaining)
    destination.load.num_running += is_whole
    state.is_decoding = is_whole
    state.transfer_pages = None


def leave(state: RequestState, now: float) -> None:
    """The attempt is over: nothing of it is on its workers any more, but for the chunk of its prompt that one may be
    computing. To be called while `state.decode` is still set."""
    pending, worker = state.pending, state.pending_on
    prefill_withdrawn(state)
    if pending is not None and worker is not None and state.phase == "prefill":
        worker.load.abandon_chunk(pending, worker.hello.max_step_tokens, worker.times.correction, now)
    decode = state.decode
    if decode is not None:
        decode.load.remove_sequence(state.num_tokens, state.expected_output_tokens - len(state.output))
        if state.is_decoding:
            decode.load.num_running -= 1
    state.is_decoding = False
    state.placed_s = state.first_token_s = None
    state.transfer_pages = None


def _observe_gap(state: RequestState, seconds: float) -> None:
    if state.decode is not None and state.transfer_pages is not None:
        state.decode.times.observe_gap(state.transfer_pages, seconds)


def check_load(worker: WorkerState, states: Sequence[RequestState]) -> None:
    """Raises AssertionError if a worker's load is not the sum of what its requests have added. For tests."""
    load, decoded = worker.load, [state for state in states if state.decode is worker]
    pending = [state.pending for state in states if state.pending is not None and state.pending_on is worker]
    remaining = sum(state.expected_output_tokens - len(state.output) for state in decoded)
    assert load.num_seqs == len(decoded), worker.name
    assert load.num_running == sum(state.is_decoding for state in decoded), worker.name
    assert load.context_tokens == sum(state.num_tokens for state in decoded), worker.name
    assert abs(load.remaining_tokens - remaining) < 1e-3, worker.name
    assert load.num_pending == len(pending), worker.name
    assert load.pending_tokens == sum(one.num_tokens for one in pending), worker.name
    assert abs(load.pending_pairs - sum(one.num_pairs for one in pending)) <= 1e-6 * load.pending_pairs + 1e-3
