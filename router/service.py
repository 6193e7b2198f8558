"""What the front calls: submit a request, read its stream, ask how things are."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

import msgpack

from slipstream.router.actions import Emit, Finish
from slipstream.router.codec import WireError, decoder
from slipstream.router.config import DispatchConfig, RouterConfig
from slipstream.router.dispatcher import Dispatcher
from slipstream.router.generation import (
    EarlyEnd,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    InvalidRequestError,
    ShuttingDownError,
)
from slipstream.router.history import RequestRecord
from slipstream.router.measured import RoleMeasured
from slipstream.router.messages import EngineRequest, Role, TokenLogprob
from slipstream.router.signals import Signals
from slipstream.router.stages import attempts_of
from slipstream.router.status import Snapshot
from slipstream.router.stream import GenerationStream
from slipstream.router.takeover.estate import Estate
from slipstream.router.version_status import VersionStatus
from slipstream.router.worker_port import WorkerPort

log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Where the output of a request goes: a stream that is read here, or one on its way to another process."""

    @property
    def record(self) -> RequestRecord: ...
    def deliver(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> None: ...
    def end(self, finish: GenerationFinish) -> None: ...


R = TypeVar("R", bound=Receiver)


class GenerationService:
    """Dispatcher and worker port as one, for a front on the same event loop. `token` is the workers' secret.

        service = GenerationService(config, model="demo", token=secret)
        await service.start()
        ...
        service.stop_admission(); await service.wait_idle(); await service.close()

    All times, also those of a stream's `timeline`, are `time.monotonic()` seconds.
    """

    def __init__(self, config: RouterConfig, *, model: str, token: str) -> None:
        self._dispatcher = Dispatcher(config.dispatch, config.history_requests)
        self._router_id = uuid.uuid4().hex
        self._port = WorkerPort(
            self._dispatcher,
            config,
            model=model,
            token=token,
            router_id=self._router_id,
            deliver=self._deliver,
        )
        self._coming_max_model_len: int | None = None
        self._packer = msgpack.Packer()
        self._decode_request = decoder(EngineRequest)
        self._receivers: dict[str, Receiver] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_admitting = True

    async def start(self, estate: Estate | None = None) -> None:
        """Lets workers connect, where the router before did if there is an estate of it. Raises OSError if the address
        cannot be had."""
        inherited = estate.for_workers if estate is not None else []
        await self._port.start(inherited[0] if inherited else None)
        if estate is not None and not inherited:
            estate.keep_listening(self._port.sockets, for_workers=True)

    @property
    def worker_address(self) -> tuple[str, int]:
        """Where workers connect to."""
        return self._port.address

    @property
    def is_ready(self) -> bool:
        """Requests are taken and a decode worker is there to serve them."""
        return self._is_admitting and self._dispatcher.has_decode_worker

    @property
    def num_decode_joins(self) -> int:
        """How often a decode worker has connected so far."""
        return self._port.num_decode_joins

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence, prompt and output, that a connected decode worker takes, or, while none is, that one
        will take; None: that is not known."""
        return self._dispatcher.max_model_len or self._coming_max_model_len

    def expect_max_model_len(self, max_model_len: int) -> None:
        """What a decode worker will take that is not there yet."""
        self._coming_max_model_len = max_model_len
        self._port.note_change()

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions of the model that a decode worker takes requests of."""
        return self._dispatcher.versions

    @property
    def version_status(self) -> tuple[VersionStatus, ...]:
        """How each version of the model stands."""
        return self._dispatcher.version_status

    @property
    def split(self) -> dict[str, float] | None:
        """The shares of versions in new requests, as they were set."""
        return self._dispatcher.split

    def follow(self, config: DispatchConfig) -> None:
        """Takes up other settings of the dispatcher, as far as it can without a new start."""
        self._port.perform(self._dispatcher.follow(config, time.monotonic()))

    def set_split(self, split: Mapping[str, float] | None) -> None:
        """None: versions share by the size of their pools. Raises ValueError for what makes no sense."""
        self._port.perform(self._dispatcher.set_split(split, time.monotonic()))

    async def wait_for_change(self) -> None:
        """Returns when the next worker has joined, was lost or was told to go."""
        await self._port.wait_for_change()

    async def wait_for_join(self) -> None:
        """Returns when the next worker has joined."""
        await self._port.wait_for_join()

    def submit(self, request: GenerateRequest) -> GenerationStream:
        """Queues a request. Raises AdmissionError (QueueFullError, PromptTooLongError, InvalidRequestError,
        ShuttingDownError), and then there is nothing to clean up."""
        return self.relay(request, lambda record: GenerationStream(record, self.cancel))

    def relay(self, request: GenerateRequest, receiver_of: Callable[[RequestRecord], R]) -> R:
        """Queues a request whose output goes to a receiver that is made for it. Raises AdmissionError."""
        if not self._is_admitting:
            raise ShuttingDownError
        self._check_sendable(request)
        actions = self._dispatcher.submit(request, time.monotonic())
        record = self._dispatcher.record(request.request_id)
        assert record is not None
        receiver = receiver_of(record)
        self._receivers[request.request_id] = receiver
        self._idle.clear()
        self._port.perform(actions)
        return receiver

    def cancel(self, request_id: str, reason: EarlyEnd = "abort") -> None:
        """Ends a request early. Unknown ids are ignored."""
        self._port.perform(self._dispatcher.cancel(request_id, time.monotonic(), reason))

    def snapshot(self) -> Snapshot:
        """Queue, workers with their credits, and totals, for metrics and status."""
        return self._dispatcher.snapshot(time.monotonic())

    def signals(self) -> Signals:
        """What a planner decides from."""
        return self._dispatcher.signals(time.monotonic(), self._router_id)

    def measured(self) -> tuple[RoleMeasured, ...]:
        """Service times and sizes of each role's workers, of which a profile is made."""
        return self._dispatcher.measured()

    def explain(self, request_id: str) -> RequestRecord | None:
        """The way of one of the last requests, by its id or one of its names: `record.lines()` tells it,
        `record.decisions` has the placements."""
        return self._dispatcher.record(request_id)

    def latest(self) -> Iterator[RequestRecord]:
        """The requests that can be explained, the last one first."""
        return self._dispatcher.records()

    def drain_worker(self, name: str, next_role: Role | None = None, migrate: bool = True) -> bool:
        """Empties a worker, which then exits or comes back as `next_role`. False if it is not connected."""
        return self._port.drain(name, next_role, migrate)

    def migrate(self, request_id: str, to: str | None = None) -> None:
        """Moves a running request to another decode worker, or to that of the name `to`, once there is room. Unknown
        ids and names are ignored."""
        self._port.migrate(request_id, to)

    def stop_admission(self) -> None:
        """From now on `submit` raises ShuttingDownError."""
        self._is_admitting = False

    async def wait_idle(self) -> None:
        """Returns when no request is queued or running."""
        await self._idle.wait()

    async def close(self) -> None:
        """Ends all requests with error "shutting_down" and closes the workers' connections."""
        self.stop_admission()
        error = GenerationError("shutting_down", "the server is shutting down", retry_after_s=1.0)
        self._port.perform(self._dispatcher.finish_all(error, time.monotonic()))
        await self._port.close()

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
        """A value that cannot travel would cost a worker its connection, with everybody on it: refuse it here.

        The prompt is left out: bytes always travel, and one that is too long for a frame is too long for any worker.
        """
        sampling, salt, priority = request.sampling, request.cache_salt, request.priority
        without_prompt = EngineRequest(request.request_id, 0, b"", b"", sampling, salt, priority)
        try:
            self._decode_request(msgpack.unpackb(self._packer.pack(without_prompt), use_list=False))
        except (WireError, OverflowError, ValueError, TypeError) as error:
            raise InvalidRequestError(f"the request cannot be sent to a worker: {error}") from error


def log_story(record: RequestRecord) -> None:
    """What failed, and at level DEBUG everything, in the words that workers use of it."""
    failures = [attempt for attempt in attempts_of(record) if attempt.failure]
    for attempt in failures:
        log.info("request %s attempt %d failed: %s", record.request_id, attempt.number, attempt.failure)
    if log.isEnabledFor(logging.DEBUG):
        trace = f" trace {record.trace_id}" if record.trace_id else ""
        log.debug("request %s%s finished:\n%s", record.request_id, trace, "\n".join(record.lines()))
