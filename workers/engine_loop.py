"""The loop of the engine thread: handle what has come in, run one step, send what has come out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import (
    Drain,
    Hello,
    RouterMessage,
    ServiceLevel,
    TokenChunk,
    TraceAttempt,
    Welcome,
    WorkerMessage,
)
from slipstream.router.protocol.messages import Role as RoleName
from slipstream.workers.interface.engine import SteppedEngine
from slipstream.workers.process.inbox import Inbox
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.telemetry.request_log import RequestLog
from slipstream.workers.telemetry.step_times import StepSampler
from slipstream.workers.telemetry.tracing.attempt_traces import AttemptTraces
from slipstream.workers.telemetry.worker_report import WorkerFailed, WorkerState
from slipstream.workers.transfers.group_transfers import GroupTransfers, RankOutcome
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to the router is lost; nothing more will come from it."""


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """The transfer agent of `rank` has released a transfer."""

    rank: int
    outcome: RankOutcome


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """A sequence that has waited for its grammar can continue."""


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """A rank of the group has died or failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker is to end. With `drain`, what is running may finish first, within `within_s`."""

    drain: bool
    within_s: float


EngineEvent = RouterMessage | LinkLost | TransferEnded | GrammarReady | GroupBroken | Stop


class RouterPort(Protocol):
    """The connection to the router, as the engine thread uses it. Calls return at once; what cannot be sent is
    dropped."""

    def connect(self, hello: Hello) -> None:
        """Keeps trying until the router answers `Welcome`, which arrives in the inbox."""

    def send(self, messages: Sequence[WorkerMessage]) -> None: ...

    def disconnect(self) -> None:
        """Ends the connection after what has been sent; afterwards nothing of it reaches the inbox."""


@dataclass(slots=True)
class EngineLoop:
    """Drives an engine and its `WorkerProtocol`, on one thread, from the beginning of a role to its end.

    `hello` builds the greeting of an incarnation; `show` tells the supervisor the state and a line about it. `clock`
    gives seconds that never go back.
    """

    engine: SteppedEngine
    protocol: WorkerProtocol
    transfers: GroupTransfers
    inbox: Inbox[EngineEvent]
    router: RouterPort
    tickets: TicketIssuer
    hello: Callable[[PeerId], Hello]
    show: Callable[[WorkerState, str], None]
    clock: Callable[[], float] = time.monotonic
    requests: RequestLog = field(default_factory=RequestLog)
    steps: StepSampler = field(default_factory=StepSampler)
    traces: AttemptTraces = field(default_factory=AttemptTraces)
    _out: list[WorkerMessage] = field(default_factory=list)
    _connected: bool = False
    _connecting: bool = False
    _step_ended_s: float | None = None  # None: there has been nothing to do since then

    def run(self) -> RoleName | None:
        """Returns, after a drain or a stop, the role that the worker is to serve next (None: it ends). Raises
        WorkerFailed, after every request has been failed."""
        protocol = self.protocol
        try:
            while not protocol.is_finished:
                self.turn()
        except WorkerFailed as error:
            self._say_goodbye(str(error))
            raise
        except BaseException as error:  # code of a model's own may leave by sys.exit
            log.exception("the engine failed")
            reason = f"engine failed: {error!r}"
            self._say_goodbye(reason)
            raise WorkerFailed(reason) from error
        if protocol.next_role is not None and not protocol.is_stopped:
            self._leave_router()
            return protocol.next_role
        self._say_goodbye("the worker stops")
        return None

    def turn(self) -> None:
        """Waits for something to do and does it."""
        self._reconnect()
        if not self.engine.has_work:
            self._step_ended_s = None
        for event in self.inbox.take(self.next_turn_s()):
            self._accept(event)
        if self.engine.has_work:
            if self._out:
                self._flush()  # answers to reservations should not wait for the step
            began_s = self.clock() if self._step_ended_s is None else self._step_ended_s
            outputs = self.engine.step()
            # Before the ends of their sequences, which alone would be tried again elsewhere.
            self._out += self.engine.take_failures()
            self._out += self.engine.take_prompt_scores()
            if self.traces.attempts:
                self._trace_step(outputs, began_s)
            self._out += self.protocol.role.sampled(outputs)
            self._sample_step(began_s)
        self._out += self.protocol.tick(self.clock())
        self._flush()

    @property
    def can_reconnect(self) -> bool:
        """Whether the next turn can begin a new epoch."""
        return not (self._connected or self._connecting) and self.protocol.is_quiet

    def _reconnect(self) -> None:
        """Begins a new epoch, once nothing of the old one is left."""
        if not self.can_reconnect:
            return
        self._connecting = True
        self.protocol.start_over()
        self.steps.start_over()
        worker = self.tickets.open_epoch()
        self.transfers.begin_epoch(worker)
        self.show("draining" if self.protocol.is_draining else "connecting", f"epoch {worker.epoch}")
        self.router.connect(self.hello(worker))

    def next_turn_s(self) -> float | None:
        """How long to wait for the next event: not at all if there is work to do, else until the next deadline."""
        if self.engine.has_work:
            return 0.0
        deadlines = [self.protocol.next_deadline_s()]
        if self._connected:  # otherwise there is no router to send anything to, however overdue it is
            deadlines.append(self.protocol.next_report_s())
        waiting = [at for at in deadlines if at is not None]
        return max(0.0, min(waiting) - self.clock()) if waiting else None

    def _accept(self, event: EngineEvent) -> None:
        protocol = self.protocol
        match event:
            case TransferEnded(rank, outcome):
                ended = self.transfers.ended(rank, outcome)
                if ended is not None:
                    self.traces.transfer_ended(ended, self.clock())
                    self._out += protocol.transfer_ended(ended, self.clock())
            case GrammarReady():
                self.engine.grammar_ready()
            case Welcome():
                self._connected, self._connecting = True, False
                self.engine.follow_level(None)  # until the router says otherwise
                self.show("draining" if protocol.is_draining else "ready", "")
            case ServiceLevel(itl_ms):
                self.engine.follow_level(itl_ms / 1000)
            case LinkLost():
                self._connected = self._connecting = False
                protocol.role.abandon()
                self.traces.attempts.clear()
            case TraceAttempt():
                self.traces.begin(event)
            case Drain(next_role):
                self._drain(protocol.drain_s, next_role)
            case Stop(drain, within_s):
                if drain:
                    protocol.next_role = None  # even if it was about to change its role
                    self._drain(within_s, None)
                else:
                    protocol.is_stopped = True
            case GroupBroken(reason):
                raise WorkerFailed(reason)
            case _:
                self.requests.heard(event)
                if self.traces.attempts:
                    self.traces.heard(event, self.clock())
                self._out += protocol.handle(event, self.clock())

    def _drain(self, within_s: float, next_role: RoleName | None) -> None:
        protocol = self.protocol
        if protocol.is_draining:
            return
        protocol.drain(self.clock(), within_s, next_role)
        then = f", then it serves as {next_role} worker" if next_role is not None else ""
        self.show("draining", f"{protocol.role.num_attempts} requests to finish{then}")

    def _sample_step(self, began_s: float) -> None:
        """Samples the time of a step. The time since the step before counts as well, because streams wait for it."""
        now_s = self._step_ended_s = self.clock()
        has_prefill = self.engine.last_step_has_prefill
        self.steps.ended(has_prefill, self.engine.last_step_num_decoding, now_s - began_s)
        sample = self.engine.last_step_time(now_s - began_s) if self.steps.wants(has_prefill, now_s) else None
        if sample is not None:
            self.steps.add(sample, now_s)
        self.engine.step_took(now_s - began_s, sample)

    def _flush(self) -> None:
        """Sends one batch per step: its tokens and events, then what the protocol has to report."""
        if self._connected:
            now_s = self.clock()
            self._out += self.protocol.reports(now_s)
            step_times = self.steps.due(now_s, not self.engine.has_work)
            if step_times is not None:
                self._out.append(step_times)
            if self.traces.attempts:
                self.traces.said(self._out, now_s)
                self._out += self.traces.take(now_s)
            if self._out:
                self.requests.said(self._out)
                self.router.send(self._out)
        self._out = []

    def _trace_step(self, outputs: Sequence[TokenChunk], began_s: float) -> None:
        """Notes the step for the requests that are traced. What has ended with it is said before its last token, with
        which the router ends the request."""
        now_s, engine = self.clock(), self.engine
        self.traces.stepped(outputs, engine.last_step_chunks(), engine.last_step_num_decoding, began_s, now_s)
        self._out += self.traces.take(now_s)

    def _leave_router(self) -> None:
        """Leaves the router for good. Of what has arrived meanwhile, only a request to stop still matters."""
        self._flush()
        self.router.disconnect()
        for event in self.inbox.take(0):
            if isinstance(event, Stop | GroupBroken):
                self.inbox.put_always(event)

    def _say_goodbye(self, reason: str) -> None:
        self._out += self.protocol.role.fail_all(reason)
        if self._connected:
            self.requests.said(self._out)
            self.router.send(self._out)
        self._out = []
