"""Drives one attempt of a request from its placement to its end, by the messages of its workers.

`request_state` draws the state machine. Messages about old attempts, and from workers that have no part in the current
one, are dropped here.
"""

from __future__ import annotations

from slipstream.router.dispatch.table.actions import EmitScores, emit_of
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.dispatch.table.traced_attempts import trace_attempt
from slipstream.router.placement.placer import Placer
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.prefix.sessions import Sessions
from slipstream.router.placement.retention.session_retention import SessionRetention
from slipstream.router.protocol.generation import GenerationError
from slipstream.router.protocol.messages import (
    Failed,
    Generate,
    HandedOff,
    Prefill,
    PromptScores,
    Reserve,
    Reserved,
    Start,
    TokenChunk,
)
from slipstream.router.registry.broken_links import Links
from slipstream.router.registry.capacity import decode_charge, prefill_charge
from slipstream.router.registry.credits import Charge
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.history import PagesLanded
from slipstream.router.requests.output_log import OutputError
from slipstream.router.requests.placement_decision import Placement
from slipstream.router.requests.request_state import RequestState


class AttemptFlow:
    """Moves requests in the table from one state to the next."""

    def __init__(
        self,
        table: RequestTable,
        placer: Placer,
        index: PrefixIndex,
        sessions: Sessions,
        retention: SessionRetention,
        links: Links,
    ) -> None:
        self._table = table
        self._links = links
        self._placer = placer
        self._index = index
        self._sessions = sessions
        self._retention = retention

    def start(self, state: RequestState, placement: Placement, now: float) -> None:
        """Begins an attempt with the first message that spends credits: Generate (local) or Reserve (remote)."""
        request_id = state.request_id
        decode, group = placement.decode, placement.prefill
        self._table.leave_queue(state, now)
        self._table.totals.placements[placement.decision.reason] += 1
        state.enter("placed", now, decision=placement.decision)
        num_predicted_cached = self._expect_pages(state, decode, group, now)
        state.decode = decode
        decode.request_ids.add(request_id)
        placed = self._placer.begin(state, placement, now)
        placed.num_predicted_cached = num_predicted_cached
        num_tokens = state.num_tokens
        charge = decode_charge(decode, num_tokens, state.most_tokens)
        if group is None:
            charge = charge._replace(tokens=num_tokens - placed.decode_cached_tokens)
        if state.request.retention is not None:
            for worker, message in self._retention.begin(state, (decode,) if group is None else (decode, group)):
                self._table.send(worker, message)
        if state.request.trace_span:
            trace_attempt(self._table, decode, state, state.attempt)
        seq = decode.ledger.spend(charge)
        if group is None:
            self._table.send(decode, Generate(seq, state.engine_request()))
            state.enter("prefill", now)
            return
        state.prefill = group
        group.request_ids.add(request_id)
        group.ledger.hold(request_id, prefill_charge(group, num_tokens))
        self._table.reserve_deadlines.set(request_id, now)
        self._table.send(decode, Reserve(seq, state.engine_request(), group.peer, group.hello.tp))

    def on_reserved(self, worker: WorkerState, message: Reserved, now: float) -> None:
        """The decode worker has reserved pages. Now the prefill group can start, unless the decode worker turned out to
        have so much cached that it had better prefill the rest itself."""
        state = self._current(worker, message)
        if state is None or state.phase != "placed" or worker is not state.decode:
            return
        group = state.prefill
        assert group is not None
        self._table.reserve_deadlines.drop(state.request_id)
        charge = group.ledger.release(state.request_id)
        assert charge is not None
        state.enter("reserved", now, f"{message.num_cached_tokens} tokens cached")
        self._table.placed[state.request_id].reserved(message.ticket.num_pages, now)
        decision = None
        if state.is_scored:  # else what is cached is computed again
            decision = self._placer.reconsider(state, worker, group, message.num_cached_tokens, now)
        if decision is not None:
            group.request_ids.discard(state.request_id)
            state.prefill = None
            placed_s = self._table.placed[state.request_id].placed_s
            if placed_s is not None:
                self._index.give_up(group, state, placed_s)
                if worker.hello.keeps_states:  # other workers are expected to have these blocks since the placement
                    self._index.expect(worker, state, placed_s)  # with its time, by which `give_up` finds them
            self._placer.prefill_locally(state, worker, message.num_cached_tokens, now)
            self._table.totals.placements[decision.reason] += 1
            # The reservation has been charged; converting it takes nothing more.
            seq = worker.ledger.spend(Charge(tokens=state.num_tokens - message.num_cached_tokens))
            self._table.send(worker, Generate(seq, state.engine_request()))
            state.is_converted = True
            state.enter("prefill", now, decision=decision)
        else:
            if state.request.trace_span:
                trace_attempt(self._table, group, state, state.attempt)
            seq = group.ledger.spend(charge)
            state.prefill_sent = True
            self._table.send(group, Prefill(seq, state.engine_request(), message.ticket))
            state.enter("prefill", now, f"on {group.name}")

    def on_chunk(self, worker: WorkerState, chunk: TokenChunk, now: float) -> None:
        """A worker sent tokens. New ones are sent to the client, in order."""
        state = self._current(worker, chunk)
        if state is None:
            return
        if chunk.finish_reason == "error" or chunk.finish_reason == "abort":
            detail = f"{worker.name} ended the sequence with {chunk.finish_reason}"
            self._table.fail_attempt(state, now, "worker_failed", detail, blamed=[worker], silent=worker)
            return
        if state.phase == "placed":
            detail = f"{worker.name} sent tokens of a request that it was only asked to reserve"
            self._table.fail_attempt(state, now, "bad_output", detail, blamed=[worker])
            return
        placed = self._table.placed[state.request_id] if state.phase == "prefill" else None
        if placed is not None and not state.is_scored:
            detail = f"{worker.name} sent {state.num_scored} of {state.num_to_score} log-probabilities of the prompt"
            self._table.fail_attempt(state, now, "bad_output", detail, blamed=[worker])
            return
        if placed is not None and placed.num_predicted_cached is not None:
            self._index.observe(placed.num_predicted_cached, chunk.num_cached_tokens)
            placed.num_predicted_cached = None
        try:
            ready = state.output.add(chunk)
        except OutputError as error:
            self._table.fail_attempt(state, now, "bad_output", f"{worker.name}: {error}", blamed=[worker])
            return
        if ready:
            if state.paused_since_s is not None:
                self._table.end_pause(state, now)
            is_one = len(ready) == 1  # nearly always true
            num_new = len(ready[0].token_ids) if is_one else sum([len(part.token_ids) for part in ready])
            assert state.decode is not None
            load = state.decode.load
            load.context_tokens += num_new
            load.remaining_tokens -= num_new
            if placed is not None:
                placed.prefill_done(now)
        for part in ready:
            self._emit(state, part, now)
            if part.finish_reason is not None or (part is ready[-1] and state.output.is_full):
                # A decode worker that ends a sequence is done with it. A prefill group may still be sending pages.
                silent = worker if chunk.finish_reason is not None and worker is state.decode else None
                reason = part.finish_reason or "length"
                self._table.finish(state, now, reason, silent=silent, stop_token_id=part.stop_token_id)
                return
        if worker is state.prefill:
            self._on_first_token(state, worker, chunk, now)
        elif ready and state.phase != "decode":
            self._on_decoding(state, now)

    def on_prompt_scores(self, worker: WorkerState, message: PromptScores, now: float) -> None:
        """A worker sent log-probabilities of the prompt. New ones are sent to the client, in order."""
        state = self._current(worker, message)
        if state is None:
            return
        scores = message.scores
        next_token = state.num_scored + 1
        flaw = scores.flaw
        if not flaw and (scores.first > next_token or scores.end > state.num_to_score + 1):
            flaw = f"log-probabilities of the tokens {scores.first} to {scores.end - 1} of the prompt came"
            flaw += f" when {next_token} to {state.num_to_score} were missing"
        if flaw:
            self._table.fail_attempt(state, now, "bad_output", f"{worker.name}: {flaw}", blamed=[worker])
            return
        new = scores.since(next_token)
        if new is not None:
            state.num_scored = new.end - 1
            self._table.actions.append(EmitScores(state.request_id, new))

    def on_handed_off(self, worker: WorkerState, message: HandedOff, now: float) -> None:
        """The decode worker has received and now owns all pages."""
        state = self._current(worker, message)
        if state is None or worker is not state.decode or state.handed_off:
            return
        state.handed_off = True
        if state.prefill is not None:
            self._links.worked(state.prefill.hello, worker.hello)
        self._table.placed[state.request_id].handed_off(message.seconds, now)
        state.record.landed = PagesLanded(now, state.attempt, message.num_bytes, message.seconds)
        totals = self._table.totals
        totals.num_transfers += 1
        totals.transfer_bytes += message.num_bytes
        totals.transfer_s += message.seconds
        if state.phase == "transfer":
            self._on_decoding(state, now)

    def on_failed(self, worker: WorkerState, message: Failed, now: float) -> None:
        """A worker gave up its part of the attempt."""
        state = self._current(worker, message)
        if state is None:
            return
        # If a reservation fails while the Generate that was to convert it is on its way, that Generate will start from
        # scratch at the worker, so the worker still needs a Cancel.
        silent = None if state.is_converted and state.phase == "prefill" else worker
        if not message.retryable:
            error = GenerationError(message.kind, message.reason)
            self._table.finish(state, now, "error", error=error, silent=silent)
            return
        if state.phase == "placed":
            self._table.take_back(state, now, worker, message.reason)
            return
        if message.is_unreachable and state.prefill is not None and state.prefill_sent:
            assert state.decode is not None
            self._links.failed(state.prefill.hello, state.decode.hello, now)
            state.num_unreachable += 1
            # The prefill group cannot do it, but the decode worker can still prefill by itself.
            detail = f"{worker.name}: {message.reason}"
            self._table.fail_attempt(state, now, "unreachable", detail, blamed=[state.prefill], silent=worker)
            return
        # A transfer has two ends, and either may be the broken one.
        blamed = [worker, state.prefill] if state.prefill is not None and state.prefill_sent else [worker]
        detail = f"{worker.name}: {message.reason}"
        self._table.fail_attempt(state, now, "worker_failed", detail, blamed=blamed, silent=silent)

    def on_lost(self, state: RequestState, worker: WorkerState, now: float, reason: str) -> None:
        """A worker that had a part in the request was lost."""
        if worker is state.prefill and state.has_first_token:
            # Either the decode worker has all pages already, or it will say Failed.
            state.prefill = None
        else:
            detail = f"{worker.name} is lost: {reason}"
            self._table.fail_attempt(state, now, "worker_lost", detail, silent=worker)

    def _expect_pages(self, state: RequestState, decode: WorkerState, group: WorkerState | None, now: float) -> int:
        """Notes in advance that the request's KV, and its conversation, will be on the workers that it is placed on.
        Returns how many of its tokens are thought to be cached where the prompt is computed."""
        num_predicted_cached = self._index.cached_tokens(group or decode, state)
        session = state.request.session
        for worker in (decode, group):
            if worker is not None:
                self._index.expect(worker, state, now, is_computed=worker is (group or decode))
                if session:
                    self._sessions.note(session, worker, state.request.tenant)
        return num_predicted_cached

    def _current(
        self, worker: WorkerState, message: Reserved | TokenChunk | PromptScores | HandedOff | Failed
    ) -> RequestState | None:
        """The request that a message is about; None if it belongs to an old attempt or the worker has no part in it."""
        state = self._table.get(message.request_id)
        if state is None or state.attempt != message.attempt:
            return None
        if worker is state.decode or (worker is state.prefill and state.prefill_sent):
            return state
        return None

    def _emit(self, state: RequestState, part: TokenChunk, now: float) -> None:
        if not part.token_ids:
            return
        if state.num_cached_tokens is None:
            state.num_cached_tokens = state.record.num_cached_tokens = part.num_cached_tokens
            state.record.timeline.mark("first_token", now)
            self._table.signals.first_token(state, now)
        self._table.totals.num_output_tokens += len(part.token_ids)
        self._table.actions.append(emit_of((part.request_id, part.token_ids, part.logprobs)))

    def _on_first_token(self, state: RequestState, group: WorkerState, chunk: TokenChunk, now: float) -> None:
        """The prefill group has sampled the first token, so the decode worker can continue from it."""
        if state.phase != "prefill" or not chunk.token_ids:
            return
        assert state.decode is not None
        if chunk.index + len(chunk.token_ids) != len(state.output):
            detail = f"{group.name} began with token {chunk.index} when {len(state.output)} were known"
            self._table.fail_attempt(state, now, "bad_output", detail, blamed=[group])
            return
        self._table.placed[state.request_id].prefill_done(now)
        state.record.note("first_token", now, state.attempt)
        self._table.send(state.decode, Start(state.request_id, state.attempt, chunk.token_ids))
        state.enter("transfer", now)
        if state.handed_off:
            self._on_decoding(state, now)

    def _on_decoding(self, state: RequestState, now: float) -> None:
        """The decode worker has everything it needs, so the prefill group no longer has a part in the request."""
        if state.phase == "prefill":
            state.record.note("first_token", now, state.attempt)
        if state.prefill is not None:
            state.prefill.request_ids.discard(state.request_id)
            state.prefill = None
        self._table.placed[state.request_id].decoding()
        state.enter("decode", now)
