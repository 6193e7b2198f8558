"""What placement keeps of a request while it waits for a worker and while an attempt runs.

It keeps the load of workers in step with the requests placed on them, and teaches their service times what was seen.
What a request adds to a worker's load at one stage is taken back at a later one; `leave` takes back all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.router.registry.worker_load import PendingPrefill
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState


@dataclass(slots=True, eq=False)
class PlacedRequest:
    """`pending` is the prompt as part of the load of `pending_on`, until its first token. `expected_output_tokens` are
    those of the whole answer, as they count in the load of its decode worker."""

    state: RequestState
    cached: dict[WorkerState, int] = field(default_factory=dict)  # tokens at the candidates, between choice and start
    wait_until_s: float | None = None  # how long it may wait for a better worker than those with room now
    decode_cached_tokens: int = 0  # on the decode worker, as known when that was chosen
    num_predicted_cached: int | None = None  # at the worker that prefills, until its first chunk
    expected_output_tokens: float = 0.0
    pending: PendingPrefill | None = None
    pending_on: WorkerState | None = None
    is_decoding: bool = False
    placed_s: float | None = None
    first_token_s: float | None = None
    transfer_pages: int | None = None

    @property
    def remaining_tokens(self) -> float:
        """How many output tokens are still expected; negative if the answer has outlived its forecast."""
        return self.expected_output_tokens - len(self.state.output)

    def placed(self, decode: WorkerState, expected_output_tokens: float, now: float) -> None:
        """The request will decode on the worker."""
        self.expected_output_tokens = expected_output_tokens
        self.placed_s = now
        decode.load.add_sequence(self.state.num_tokens, self.remaining_tokens)

    def prefill_placed(self, worker: WorkerState, pending: PendingPrefill) -> None:
        """The worker is to compute the prompt: a prefill group, from before it is sent the request, or the decode
        worker."""
        assert self.pending is None
        self.pending, self.pending_on = pending, worker
        worker.load.begin_prefill(pending)

    def reserved(self, num_pages: int, now: float) -> None:
        """The decode worker has reserved pages, and the prefill group gets the request."""
        self.transfer_pages = num_pages
        decode = self.state.decode
        if decode is not None and self.placed_s is not None:
            decode.times.observe_reserve(now - self.placed_s)
        if self.pending is not None:
            self.pending.begun_s = now

    def prefill_withdrawn(self) -> None:
        """The worker no longer has to compute the prompt: it is done, or goes elsewhere, or the request ended."""
        if self.pending is not None and self.pending_on is not None:
            self.pending_on.load.end_prefill(self.pending)
        self.pending = self.pending_on = None

    def prefill_done(self, now: float) -> None:
        """The first tokens of the attempt came."""
        pending = self.pending
        if pending is not None and self.pending_on is not None:
            self.pending_on.times.observe_first_token(pending.predicted_s, now - pending.begun_s)
            self.prefill_withdrawn()
            self.first_token_s = now
            if self.state.handed_off:
                self._observe_gap(0.0)

    def handed_off(self, seconds: float, now: float) -> None:
        """The decode worker has all pages; the transfer took `seconds` by its own clock."""
        decode = self.state.decode
        if decode is None or self.transfer_pages is None:
            return
        decode.times.observe_transfer(self.transfer_pages, seconds)
        if self.first_token_s is not None:
            self._observe_gap(now - self.first_token_s)

    def decoding(self) -> None:
        """The request is past its prefill, and its decode worker has all pages."""
        decode = self.state.decode
        if decode is not None and not self.is_decoding:
            self.is_decoding = True
            decode.load.num_running += 1

    def moved(self, destination: WorkerState, is_whole: bool) -> None:
        """The request belongs to another decode worker from now on; `is_whole`: that worker has all pages already. To
        be called while `state.decode` is still the old one."""
        source, num_tokens, remaining = self.state.decode, self.state.num_tokens, self.remaining_tokens
        assert source is not None
        source.load.remove_sequence(num_tokens, remaining)
        source.load.num_running -= 1
        destination.load.add_sequence(num_tokens, remaining)
        destination.load.num_running += is_whole
        self.is_decoding = is_whole
        self.transfer_pages = None

    def leave(self, now: float) -> None:
        """The attempt is over: nothing of it is on its workers any more, but for the chunk of its prompt that one may
        be computing. To be called while `state.decode` is still set."""
        pending, worker, state = self.pending, self.pending_on, self.state
        self.prefill_withdrawn()
        if pending is not None and worker is not None and state.phase == "prefill":
            worker.load.abandon_chunk(pending, worker.hello.max_step_tokens, worker.times.correction, now)
        if state.decode is not None:
            state.decode.load.remove_sequence(state.num_tokens, self.remaining_tokens)
            state.decode.load.num_running -= self.is_decoding

    def _observe_gap(self, seconds: float) -> None:
        if self.state.decode is not None and self.transfer_pages is not None:
            self.state.decode.times.observe_gap(self.transfer_pages, seconds)


class PlacedRequests(dict[str, PlacedRequest]):
    """By request id: those that a policy has looked at since they came to the queue. (It is a dict because it is asked
    several times per request.)"""

    __slots__ = ()

    def of(self, state: RequestState) -> PlacedRequest:
        """The placement record of a request, made when it is first needed."""
        placed = self.get(state.request_id)
        if placed is None:
            placed = self[state.request_id] = PlacedRequest(state)
        return placed

    def check_load(self, worker: WorkerState, states: Sequence[RequestState]) -> None:
        """Raises AssertionError if a worker's load is not the sum of what its requests have added. For tests."""
        load, placed = worker.load, [self[state.request_id] for state in states]
        decoded = [one for one in placed if one.state.decode is worker]
        pending = [one.pending for one in placed if one.pending is not None and one.pending_on is worker]
        assert load.num_seqs == len(decoded), worker.name
        assert load.num_running == sum(one.is_decoding for one in decoded), worker.name
        assert load.context_tokens == sum(one.state.num_tokens for one in decoded), worker.name
        assert abs(load.remaining_tokens - sum(one.remaining_tokens for one in decoded)) < 1e-3, worker.name
        assert load.num_pending == len(pending), worker.name
        assert load.pending_tokens == sum(one.num_tokens for one in pending), worker.name
        assert abs(load.pending_pairs - sum(one.num_pairs for one in pending)) <= 1e-6 * load.pending_pairs + 1e-3
