"""The service that fronts call: submit a request, read its stream, read the cluster's state."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgpack

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, RouterConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Emit, Finish, Send
from slipstream.router.dispatch.worker_port import WorkerPort
from slipstream.router.page_budget.page_ledger import BudgetedWorker
from slipstream.router.protocol.codec import WireError, decoder
from slipstream.router.protocol.generation import (
    SHUTTING_DOWN,
    EarlyEnd,
    GenerateRequest,
    GenerationFinish,
    InvalidRequestError,
    NoWorkersError,
    ShuttingDownError,
)
from slipstream.router.protocol.messages import EngineRequest, PageLimit, TokenLogprob
from slipstream.router.registry.worker_profile import RoleProfile, worker_profiles
from slipstream.router.requests.history import RequestRecord
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.stages import attempts_of
from slipstream.router.requests.stream import GenerationStream, Handouts
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.status import Snapshot

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Receives the output of a request: a stream of this process, or a link to another process."""

    @property
    def record(self) -> RequestRecord: ...
    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None: ...
    def end(self, finish: GenerationFinish) -> None: ...


R = TypeVar("R", bound=Receiver)


class GenerationService:
    """The dispatcher and its `worker_port`, for a front on the same event loop. `token` is the workers' secret.

        service = GenerationService(config, model="demo", token=secret)
        await service.start()
        ...
        service.stop_admission(); await service.wait_idle(); await service.close()

    All times, including those of a stream's `timeline`, are `time.monotonic()` seconds.
    """

    def __init__(self, config: RouterConfig, *, model: str, token: str) -> None:
        self._dispatcher = Dispatcher(config.dispatch, config.history_requests)
        self.history = self._dispatcher.history
        self.note_refused = self.history.refuse
        self._router_id = uuid.uuid4().hex
        self.worker_port = WorkerPort(
            self._dispatcher,
            config,
            model=model,
            token=token,
            router_id=self._router_id,
            deliver=self._deliver,
        )
        self._coming_max_model_len: int | None = None
        self._refusal_reason = ""
        self._packer = msgpack.Packer()
        self._decode_request = decoder(EngineRequest)
        self._receivers: dict[str, Receiver] = {}
        self._handouts = Handouts()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_admitting = True
        self._is_closed = False

    async def start(self, sockets: Sequence[socket.socket] = ()) -> Sequence[socket.socket]:
        """Listens for workers at `sockets`, or else at the configured address. Returns the sockets. Raises OSError if
        it cannot listen."""
        return await self.worker_port.start(sockets)

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted and a decode worker is connected to serve them."""
        return self._is_admitting and bool(self._dispatcher.registry.decode_workers)

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence (prompt and output) that a connected decode worker takes. While none is connected, the
        longest that an expected one will take; None: not known."""
        return self._dispatcher.registry.max_model_len or self._coming_max_model_len

    def expect_max_model_len(self, max_model_len: int) -> None:
        """Sets the longest sequence that the decode workers will accept, before the first of them has connected."""
        self._coming_max_model_len = max_model_len
        self.worker_port.note_change()

    def refuse_without_workers(self, reason: str) -> None:
        """While no decode worker is connected, new requests are refused for this reason; "": they wait for one."""
        self._refusal_reason = reason

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the model that some decode worker takes requests for."""
        return self._dispatcher.versions.live

    def follow(self, config: DispatchConfig) -> None:
        """Takes over changed settings of the dispatcher, as far as that is possible without a restart."""
        self.worker_port.perform(self._dispatcher.follow(config, time.monotonic()))

    def set_split(self, split: Mapping[str, float] | None) -> None:
        """Sets each version's share of new requests; None: in proportion to the size of their pools. Raises ValueError
        if the split makes no sense."""
        self.worker_port.perform(self._dispatcher.set_split(split, time.monotonic()))

    def submit(self, request: GenerateRequest) -> GenerationStream:
        """Queues a request and returns the stream of its output. Raises a subclass of AdmissionError if the request is
        refused; then there is nothing to clean up."""
        return self.relay(request, lambda record: GenerationStream(record, self.cancel, self._handouts))

    def relay(self, request: GenerateRequest, receiver_of: Callable[[RequestRecord], R]) -> R:
        """Queues a request whose output goes to the receiver that `receiver_of` makes for it. Raises AdmissionError."""
        # Requests that a previous router has admitted continue even while this one drains.
        if self._is_closed or not (self._is_admitting or request.resumed is not None):
            refusal = ShuttingDownError()
            self.note_refused(RejectedRequest.of(request, refusal.error, time.monotonic()))
            raise refusal
        if self._refusal_reason and request.resumed is None and not self._dispatcher.registry.decode_workers:
            refused = NoWorkersError(self._refusal_reason)
            self.note_refused(RejectedRequest.of(request, refused.error, time.monotonic()))
            raise refused
        self._check_sendable(request)
        actions = self._dispatcher.submit(request, time.monotonic())
        record = self.history.get(request.request_id)
        assert record is not None
        receiver = receiver_of(record)
        self._receivers[request.request_id] = receiver
        self._idle.clear()
        self.worker_port.perform(actions)
        return receiver

    def cancel(self, request_id: str, reason: EarlyEnd = "abort") -> None:
        """Ends a request early. Unknown ids are ignored."""
        self.worker_port.perform(self._dispatcher.cancel(request_id, time.monotonic(), reason))

    def snapshot(self) -> Snapshot:
        """The queue, the workers with their credits, and the totals, for metrics and status."""
        return self._dispatcher.snapshot(time.monotonic())

    def signals(self) -> Signals:
        """The recent load and how well it was served: what a planner decides from."""
        return self._dispatcher.signals(time.monotonic(), self._router_id)

    def budgeted_workers(self) -> list[BudgetedWorker]:
        """The workers that obey a limit on their pages, with what they need."""
        return self._dispatcher.budgeted_workers()

    def limit_pages(self, peer: PeerId, limit: PageLimit) -> None:
        """Sends a worker its limit."""
        self.worker_port.perform([Send(peer, limit)])

    async def wait_for_join(self) -> None:
        """Returns when the next worker has joined."""
        await self.worker_port.wait_for_join()

    def worker_profiles(self) -> tuple[RoleProfile, ...]:
        """The service times and the sizes of each role's workers, from which a profile is made."""
        return tuple(worker_profiles(self._dispatcher.registry))

    def stop_admission(self) -> None:
        """From now on `submit` raises ShuttingDownError, but for requests that the previous router has admitted."""
        self._is_admitting = False

    async def wait_idle(self) -> None:
        """Returns when no request is queued or running."""
        await self._idle.wait()

    async def close(self) -> None:
        """Ends all requests with error "shutting_down" and closes the workers' connections."""
        self.stop_admission()
        self._is_closed = True
        self.worker_port.perform(self._dispatcher.finish_all(SHUTTING_DOWN, time.monotonic()))
        await self.worker_port.close()

    def _deliver(self, action: Emit | Finish) -> None:
        if isinstance(action, Emit):
            self._receivers[action.request_id].deliver(action.token_ids, action.logprobs)
        else:
            receiver = self._receivers.pop(action.request_id)
            receiver.end(action.finish)
            record = receiver.record
            if action.finish.error is not None or record.events[-1].attempt or log.isEnabledFor(logging.DEBUG):
                log_story(record)
            if not self._receivers:
                self._idle.set()

    def _check_sendable(self, request: GenerateRequest) -> None:
        """Refuses a request with a value that cannot be encoded: sending it would cost a worker its connection, and
        with it all requests there.

        The prompt is not checked: bytes can always be encoded, and a prompt too long for a frame is too long for any
        worker. Raises InvalidRequestError.
        """
        sampling, salt, priority = request.sampling, request.cache_salt, request.priority
        without_prompt = EngineRequest(request.request_id, 0, b"", b"", sampling, salt, priority)
        try:
            self._decode_request(msgpack.unpackb(self._packer.pack(without_prompt), use_list=False))
        except (WireError, OverflowError, ValueError, TypeError) as error:
            raise InvalidRequestError(f"the request cannot be sent to a worker: {error}") from error


def log_story(record: RequestRecord) -> None:
    """Logs the failed attempts of a request and, at level DEBUG, its whole story, in the words that workers log too."""
    failures = [attempt for attempt in attempts_of(record) if attempt.failure]
    for attempt in failures:
        log.info("request %s attempt %d failed: %s", record.request_id, attempt.number, attempt.failure)
    if log.isEnabledFor(logging.DEBUG):
        trace = f" trace {record.trace_id}" if record.trace_id else ""
        log.debug("request %s%s finished:\n%s", record.request_id, trace, "\n".join(record.lines()))
