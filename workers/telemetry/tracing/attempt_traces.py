"""What the worker does for the requests that are traced, reported to the router, which makes spans of it.

TraceAttempt --> noted --Prefill, Generate--> "worker.prefill" --first token--> "worker.decode" --end--> reported
                   |---Reserve, Adopt--> "worker.receive" --all ranks Received, Start--> "worker.decode"
                   '---Prefill, Migrate--> "worker.send"    --all ranks Sent--> reported

No OpenTelemetry is loaded here. A request that is not traced has no entry, and a worker without entries does nothing.
Everything is bounded: the attempts, and the events of a span, of which neighbours are joined as they become many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import TransferKey
from slipstream.router.protocol.messages import (
    Adopt,
    AttemptWork,
    Cancel,
    Failed,
    Generate,
    Migrate,
    Prefill,
    Reserve,
    Reserved,
    RouterMessage,
    Start,
    TokenChunk,
    TraceAttempt,
    WorkerMessage,
    WorkSpan,
)
from slipstream.workers.interface.engine import AttemptKey
from slipstream.workers.interface.page_transfers import TransferOutcome
from slipstream.workers.telemetry.tracing.attempt_span import AttemptSpan, StepSummary

MAX_ATTEMPTS = 1024  # an older one is no longer traced


@dataclass(slots=True)
class _TracedAttempt:
    """The spans that are open. `summary` sums up the steps of the one that computes."""

    traceparent: str
    computing: AttemptSpan | None = None
    summary: StepSummary = field(default_factory=StepSummary)
    transfers: dict[TransferKey, AttemptSpan] = field(default_factory=dict)
    sends_pages: bool = False  # a prefill worker, so another one decodes
    awaited: AttemptSpan | None = None  # pages that will come, whose ticket is not issued yet
    is_over: bool = False  # but for transfers

    @property
    def has_ended(self) -> bool:
        return self.is_over and not self.transfers


@dataclass(slots=True)
class AttemptTraces:
    """Called in the order in which things happen; `take` returns what is to be reported. The engine loop looks at
    `attempts` before any call but `begin` and `transfer_ended`. `transport` is how pages are sent."""

    transport: str = ""
    attempts: dict[AttemptKey, _TracedAttempt] = field(default_factory=dict)
    _ended: list[tuple[AttemptKey, AttemptSpan]] = field(default_factory=list)

    def begin(self, message: TraceAttempt) -> None:
        """The next message about this attempt begins it."""
        if len(self.attempts) >= MAX_ATTEMPTS:
            del self.attempts[next(iter(self.attempts))]
        self.attempts[message.request_id, message.attempt] = _TracedAttempt(message.traceparent)

    def heard(self, message: RouterMessage, now_s: float) -> None:
        """A message of the router, before it is handled."""
        match message:
            case Generate(_, request):
                traced = self.attempts.get((request.request_id, request.attempt))
                if traced is not None:
                    traced.awaited = None
                    num_tokens = (len(request.prompt_ids) + len(request.output_ids)) // 4
                    traced.computing = AttemptSpan("worker.prefill", now_s, {"tokens": num_tokens}, {})
            case Prefill(_, request, ticket):
                traced = self.attempts.get((request.request_id, request.attempt))
                if traced is not None:
                    num_tokens = (len(request.prompt_ids) + len(request.output_ids)) // 4
                    traced.computing = AttemptSpan("worker.prefill", now_s, {"tokens": num_tokens}, {})
                    traced.sends_pages = True
                    traced.transfers[ticket.key] = self._transfer("worker.send", now_s, to=ticket.key.destination.name)
            case Reserve(_, request, source) | Adopt(_, request, source):
                traced = self.attempts.get((request.request_id, request.attempt))
                if traced is not None:
                    traced.awaited = self._transfer("worker.receive", now_s, source=source.name)
                    if isinstance(message, Adopt):
                        traced.awaited.labels["reason"] = "move"
            case Migrate(request_id, attempt, to_attempt, ticket, freeze):
                traced = self.attempts.get((request_id, attempt))
                if traced is not None:
                    sending = self._transfer("worker.send", now_s, to=ticket.key.destination.name)
                    sending.labels |= {"reason": "move", "round": "last" if freeze else "copy"}
                    sending.figures["to_attempt"] = to_attempt
                    traced.transfers[ticket.key] = sending
            case Start(request_id, attempt):
                traced = self.attempts.get((request_id, attempt))
                if traced is not None and traced.computing is None:
                    traced.computing = AttemptSpan("worker.decode", now_s, {}, {})
            case Cancel(request_id, attempt):
                self._end((request_id, attempt), now_s, outcome="cancelled")

    def stepped(
        self,
        outputs: Iterable[TokenChunk],
        chunks: Sequence[tuple[AttemptKey, int]],
        num_decoding: int,
        began_s: float,
        now_s: float,
    ) -> None:
        """A step has ended: `chunks` are the prompts that it computed, `outputs` the tokens that it sampled."""
        batch = num_decoding + len(chunks)
        for key, num_tokens in chunks:
            traced = self.attempts.get(key)
            if traced is not None and traced.computing is not None:
                traced.summary.add(num_tokens, batch, began_s, now_s)
        for chunk in outputs:
            key = (chunk.request_id, chunk.attempt)
            traced = self.attempts.get(key)
            if traced is None or traced.computing is None:
                continue
            if traced.computing.name == "worker.prefill":
                self._first_token(key, traced, chunk, now_s)
            else:
                traced.summary.add(len(chunk.token_ids), batch, began_s, now_s)
            if chunk.finish_reason is not None:
                self._end(key, now_s, outcome=chunk.finish_reason)

    def transfer_ended(self, outcome: TransferOutcome, now_s: float) -> None:
        """A transfer has ended on all ranks; its attempt may be traced or not."""
        for key, traced in self.attempts.items():
            span = traced.transfers.pop(outcome.transfer, None)
            if span is None:
                continue
            span.figures |= {"bytes": outcome.num_bytes, "seconds": outcome.seconds}
            if outcome.seconds > 0 and outcome.failure is None:
                span.figures["gb_per_s"] = outcome.num_bytes / outcome.seconds / 1e9
            if outcome.is_cancelled:
                span.labels["outcome"] = "cancelled"
            self._close(key, span, now_s, "" if outcome.is_cancelled else outcome.failure or "")
            return

    def said(self, messages: Iterable[WorkerMessage], now_s: float) -> None:
        """These messages are about to be sent."""
        for message in messages:
            match message:
                case Reserved(request_id, attempt, num_cached_tokens, ticket):
                    traced = self.attempts.get((request_id, attempt))
                    if traced is not None and traced.awaited is not None:
                        traced.awaited.figures["cached_tokens"] = num_cached_tokens
                        traced.transfers[ticket.key], traced.awaited = traced.awaited, None
                case Failed(request_id, attempt, reason):
                    self._end((request_id, attempt), now_s, error=reason)
                    self._end_moves(request_id, attempt, now_s, reason)

    def take(self, now_s: float) -> list[AttemptWork]:
        """What has ended since the last call. Attempts with nothing left are forgotten."""
        for key in [key for key, traced in self.attempts.items() if traced.has_ended]:
            del self.attempts[key]
        reports: dict[AttemptKey, list[WorkSpan]] = {}
        for key, span in self._ended:
            reports.setdefault(key, []).append(span.report(now_s))
        self._ended.clear()
        return [AttemptWork(*key, tuple(spans)) for key, spans in reports.items()]

    def _first_token(self, key: AttemptKey, traced: _TracedAttempt, chunk: TokenChunk, now_s: float) -> None:
        prefill = traced.computing
        assert prefill is not None
        prefill.figures["cached_tokens"] = chunk.num_cached_tokens
        self._end_computing(key, traced, now_s, "")
        if traced.sends_pages:
            traced.is_over = True
        else:
            traced.computing = AttemptSpan("worker.decode", now_s, {}, {})

    def _end(self, key: AttemptKey, now_s: float, *, outcome: str = "", error: str = "") -> None:
        """The attempt has ended here, but for the transfers under way."""
        traced = self.attempts.get(key)
        if traced is None:
            return
        traced.is_over = True
        never_began = traced.sends_pages and traced.computing is not None and not traced.summary.has_steps
        if traced.awaited is not None:
            self._close(key, traced.awaited, now_s, error)
            traced.awaited = None
        if traced.computing is not None:
            if outcome:
                traced.computing.labels["outcome"] = outcome
            self._end_computing(key, traced, now_s, error)
        if error or never_began:
            for span in traced.transfers.values():
                self._close(key, span, now_s, error)
            traced.transfers.clear()

    def _end_moves(self, request_id: str, to_attempt: int, now_s: float, error: str) -> None:
        """What was to become this attempt elsewhere does not."""
        for key, traced in self.attempts.items():
            if key[0] == request_id:
                for transfer, span in list(traced.transfers.items()):
                    if span.figures.get("to_attempt") == to_attempt:
                        self._close(key, traced.transfers.pop(transfer), now_s, error)

    def _end_computing(self, key: AttemptKey, traced: _TracedAttempt, now_s: float, error: str) -> None:
        span, summary = traced.computing, traced.summary
        assert span is not None
        summary.describe(span)
        traced.computing, traced.summary = None, StepSummary()
        self._close(key, span, now_s, error)

    def _close(self, key: AttemptKey, span: AttemptSpan, now_s: float, error: str) -> None:
        span.end_s, span.error = now_s, error
        self._ended.append((key, span))

    def _transfer(self, name: str, now_s: float, **peer: str) -> AttemptSpan:
        labels = {"transport": self.transport} if self.transport else {}
        return AttemptSpan(name, now_s, {}, labels | peer)
