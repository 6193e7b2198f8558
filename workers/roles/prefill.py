"""The prefill role: computes a prompt, sends its first token and its pages, and releases the pages.

Prefill --> waiting --first step--> computing, sending --first token--> sending --Sent by all ranks--> released
               |                              |                            |
               | Cancel, router gone          +-- Cancel, failed send, ----+--> closing --all ranks quiet--> released
               v                                  router gone
            released
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import TransferKey
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Failed,
    Generate,
    PeerLost,
    Prefill,
    Reserve,
    RouterMessage,
    StepOutput,
    TokenChunk,
    WorkerMessage,
)
from slipstream.workers.interface.engine import AttemptKey, Engine, EngineRequestError, NoRoomError
from slipstream.workers.interface.page_transfers import PageTransfers, TransferOutcome


@dataclass(slots=True)
class _PromptTransfer:
    transfer: TransferKey
    closing: bool = False  # no longer wanted: the pages are released once the transfer has released them


@dataclass(slots=True)
class PrefillRole:
    """Follows the attempts of a prefill group until their pages have been sent."""

    engine: Engine
    transfers: PageTransfers
    _attempts: dict[AttemptKey, _PromptTransfer] = field(default_factory=dict)
    _by_transfer: dict[TransferKey, AttemptKey] = field(default_factory=dict)
    _refusal: str | None = None

    @property
    def num_attempts(self) -> int:
        return len(self._attempts)

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        match message:
            case Prefill():
                return self._prefill(message)
            case Generate(request=request) | Reserve(request=request) | Adopt(request=request):
                return [Failed(request.request_id, request.attempt, "this is a prefill worker", True)]
            case Cancel(request_id, attempt):
                self._close((request_id, attempt))
            case PeerLost(peer):
                self.transfers.peer_lost(peer)
        return []

    def _prefill(self, message: Prefill) -> Sequence[WorkerMessage]:
        request, ticket = message.request, message.ticket
        key = (request.request_id, request.attempt)
        if self._refusal is not None:
            return [Failed(*key, self._refusal, True)]
        if key in self._attempts or ticket.key in self._by_transfer:
            return [Failed(*key, "this attempt or its ticket is already here", True)]
        try:
            self.engine.add_prefill(request, ticket)
        except (EngineRequestError, NoRoomError) as error:
            return [Failed(*key, str(error), isinstance(error, NoRoomError))]
        self._attempts[key] = _PromptTransfer(ticket.key)
        self._by_transfer[ticket.key] = key
        return []

    def _close(self, key: AttemptKey) -> None:
        sending = self._attempts.get(key)
        if sending is None or sending.closing:
            return
        if self.transfers.knows(sending.transfer):
            sending.closing = True
            self.engine.abort(key, keep_pages=True)
            self.transfers.cancel(sending.transfer)
        else:  # still waiting for its first step
            self.engine.abort(key)
            del self._attempts[key]
            del self._by_transfer[sending.transfer]

    def transfer_ended(self, outcome: TransferOutcome, now_s: float) -> Sequence[WorkerMessage]:
        key = self._by_transfer.pop(outcome.transfer)
        sending = self._attempts.pop(key)
        if outcome.failure is None or sending.closing:
            self.engine.release(key)
            return []
        self.engine.abort(key)
        return [Failed(*key, f"pages could not be sent: {outcome.failure}", True, outcome.is_unreachable)]

    def sampled(self, outputs: Sequence[TokenChunk]) -> Sequence[WorkerMessage]:
        for output in outputs:
            if output.finish_reason == "error":  # this tells the router that no Cancel is needed
                self._close((output.request_id, output.attempt))
        return [StepOutput(tuple(outputs))] if outputs else []

    def expire(self, now_s: float) -> Sequence[WorkerMessage]:
        return []  # nothing to do here: the agent bounds the time of every send

    def next_deadline_s(self) -> float | None:
        return None

    def refuse(self, reason: str) -> None:
        self._refusal = reason

    def abandon(self) -> None:
        for key in list(self._attempts):
            self._close(key)

    def fail_all(self, reason: str) -> Sequence[WorkerMessage]:
        return [Failed(*key, reason, True) for key, sending in self._attempts.items() if not sending.closing]
