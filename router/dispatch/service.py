"""The service that fronts call: submit a request, read its stream, read the cluster's state."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgpack

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, RouterConfig
from slipstream.router.dispatch.mirrored_version import MirroredVersion
from slipstream.router.dispatch.model_dispatch import ModelDispatch
from slipstream.router.dispatch.table.actions import Action, Emit, EmitScores, Finish
from slipstream.router.dispatch.worker_port import WorkerPort
from slipstream.router.page_budget.page_ledger import BudgetedWorker
from slipstream.router.protocol.codec import WireError, decoder
from slipstream.router.protocol.generation import (
    SHUTTING_DOWN,
    AdmissionError,
    EarlyEnd,
    GenerateRequest,
    GenerationError,
    InvalidRequestError,
    NoWorkersError,
    ShuttingDownError,
    UnknownModelError,
)
from slipstream.router.protocol.messages import EngineRequest, PageLimit
from slipstream.router.registry.worker_abilities import WorkerAbilities
from slipstream.router.registry.worker_profile import RoleProfile, worker_profiles
from slipstream.router.requests.history import History, RequestRecord
from slipstream.router.requests.receiver import Receiver
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.stages import attempts_of
from slipstream.router.requests.stream import GenerationStream, Handouts
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.status import Snapshot

log = logging.getLogger(__name__)


R = TypeVar("R", bound=Receiver)


class GenerationService:
    """The dispatchers of all models and their `worker_port`, for a front on the same event loop. `models` gives each
    model its settings; `token` is the workers' secret.

        service = GenerationService(config, models={"demo": config.dispatch}, token=secret)
        await service.start()
        ...
        service.stop_admission(); await service.wait_idle(); await service.close()

    All times, including those of a stream's `timeline`, are `time.monotonic()` seconds. Methods that take the name of a
    model raise KeyError if it is not served.
    """

    def __init__(self, config: RouterConfig, *, models: Mapping[str, DispatchConfig], token: str) -> None:
        self.history = History(config.history_requests)
        self.note_refused = self.history.refuse
        self._router_id = uuid.uuid4().hex
        self._models: dict[str, ModelDispatch] = {}
        self.worker_port = WorkerPort(
            self._models,
            config,
            token=token,
            router_id=self._router_id,
            deliver=self._deliver,
        )
        self._packer = msgpack.Packer()
        self._decode_request = decoder(EngineRequest)
        self._receivers: dict[str, Receiver] = {}
        self._mirrored: dict[str, MirroredVersion] = {}  # by model
        self._handouts = Handouts()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_admitting = True
        self._is_closed = False
        for name, dispatch in models.items():
            self.add_model(name, dispatch)

    async def start(self, sockets: Sequence[socket.socket] = ()) -> Sequence[socket.socket]:
        """Listens for workers at `sockets`, or else at the configured address. Returns the sockets. Raises OSError if
        it cannot listen."""
        return await self.worker_port.start(sockets)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that are served, those that are being removed included."""
        return tuple(self._models)

    def add_model(self, name: str, config: DispatchConfig) -> None:
        """Serves another model from now on. Raises ValueError if there is one of this name."""
        if not name:
            raise ValueError("a model needs a name, got ''")
        if name in self._models:
            raise ValueError(f"model {name!r} is served already")
        self._models[name] = ModelDispatch(name, config, self.history, self.worker_port.perform)
        self.worker_port.note_change()

    async def remove_model(self, name: str, deadline_s: float | None = None) -> None:
        """Ends a model: new requests are refused, those that wait or run end first, then its workers are drained. After
        `deadline_s` seconds (None: never) what is left ends with an error, and connections of workers are closed."""
        model = self._models[name]
        model.is_leaving = True
        if model.mirrored is not None:
            self.set_mirror(name, model.mirrored_version, None)
        self.worker_port.note_change()
        try:
            async with asyncio.timeout(deadline_s):
                if model.dispatcher.num_requests:
                    model.idle.clear()
                    await model.idle.wait()
                if len(model.dispatcher.registry):
                    model.workers_left.clear()
                    for worker in list(model.dispatcher.registry):
                        self.worker_port.drain(worker.name)
                    await model.workers_left.wait()
        except TimeoutError:
            error = GenerationError("model_not_found", f"model {name!r} has been removed")
            self._perform(model, model.dispatcher.finish_all(error, time.monotonic()))
            self.worker_port.disconnect(model)
        if self._models.get(name) is model:
            del self._models[name]
        model.close()
        self.worker_port.note_change()

    def has_workers(self, model: str) -> bool:
        """Whether requests are accepted and a decode worker of the model is connected to serve them."""
        found = self._models.get(model)
        return self._is_admitting and found is not None and found.has_decode_workers

    def is_leaving(self, model: str) -> bool:
        """Whether the model is being removed."""
        return self._models[model].is_leaving

    def num_decode_joins_of(self, model: str) -> int:
        """How many decode workers have connected since the router began."""
        return self._models[model].num_decode_joins

    def max_model_len_of(self, model: str) -> int | None:
        """The longest sequence (prompt and output) that a connected decode worker takes. While none is connected, the
        longest that an expected one will take; None: not known."""
        return self._models[model].max_model_len

    def abilities_of(self, model: str) -> WorkerAbilities:
        """What requests may ask of the connected workers."""
        return self._models[model].dispatcher.registry.abilities

    def expect_max_model_len(self, model: str, max_model_len: int) -> None:
        """Sets the longest sequence that the decode workers will accept, before the first of them has connected."""
        self._models[model].coming_max_model_len = max_model_len
        self.worker_port.note_change()

    def refuse_without_workers(self, model: str, reason: str) -> None:
        """While no decode worker is connected, new requests are refused for this reason; "": they wait for one."""
        self._models[model].refusal_reason = reason

    def versions_of(self, model: str) -> tuple[str, ...]:
        """The versions of the model that some decode worker takes requests for."""
        return self._models[model].dispatcher.versions.live

    def shares_of(self, model: str) -> Mapping[str, float]:
        """The shares of new requests that the model's live versions have, in any unit."""
        return self._models[model].dispatcher.versions.shares

    def follow(self, model: str, config: DispatchConfig) -> None:
        """Takes over changed settings of the dispatcher, as far as that is possible without a restart."""
        found = self._models[model]
        found.config = config
        self._perform(found, found.dispatcher.follow(config, time.monotonic()))

    def set_split(self, model: str, split: Mapping[str, float] | None) -> None:
        """Sets each version's share of new requests; None: in proportion to the size of their pools. Raises ValueError
        if the split makes no sense."""
        found = self._models[model]
        self._perform(found, found.dispatcher.set_split(split, time.monotonic()))
        self.worker_port.note_change()

    def set_mirror(self, model: str, version: str, percent: float | None) -> None:
        """Copies so many percent of the model's requests to this version, which gets no others; None: ends that. The
        workers of the version connect anew, to where they belong from now on. Raises ValueError."""
        found, before = self._models[model], self._mirrored.get(model)
        if percent is not None and not 0 < percent <= 100:
            raise ValueError(f"percent must be over 0 and at most 100, got {percent}")
        if before is not None and before.version == version and before.percent == percent:
            return
        found.mirrored, found.mirrored_version = None, ""
        if before is not None:
            del self._mirrored[model]
            before.close()
            self.worker_port.reconnect(before.dispatch, before.version)
        if percent is not None:
            mirrored = self._mirrored[model] = MirroredVersion(found, version, percent, self.worker_port.perform)
            found.mirrored, found.mirrored_version = mirrored.dispatch, version
            self.worker_port.reconnect(found, version)
        self.worker_port.note_change()

    def submit(self, request: GenerateRequest) -> GenerationStream:
        """Queues a request and returns the stream of its output. Raises a subclass of AdmissionError if the request is
        refused; then there is nothing to clean up."""
        return self.relay(request, lambda record: GenerationStream(record, self.cancel, self._handouts))

    def relay(self, request: GenerateRequest, receiver_of: Callable[[RequestRecord], R]) -> R:
        """Queues a request whose output goes to the receiver that `receiver_of` makes for it. Raises AdmissionError."""
        if not request.model and len(self._models) == 1:
            request = request._replace(model=next(iter(self._models)))
        try:
            model = self._admitting_model(request)
        except AdmissionError as refused:
            self.note_refused(RejectedRequest.of(request, refused.error, time.monotonic()))
            raise
        self._check_sendable(request)
        actions = model.dispatcher.submit(request, time.monotonic())
        record = self.history.get(request.request_id)
        assert record is not None
        receiver = receiver_of(record)
        mirrored = self._mirrored.get(model.name) if self._mirrored else None
        self._receivers[request.request_id] = mirrored.observed(request, receiver) if mirrored else receiver
        self._idle.clear()
        self._perform(model, actions)
        return receiver

    def _admitting_model(self, request: GenerateRequest) -> ModelDispatch:
        """The model that the request is for. Raises AdmissionError if it takes no requests now."""
        # Requests that a previous router has admitted continue even while this one drains.
        if self._is_closed or not (self._is_admitting or request.resumed is not None or request.follows):
            raise ShuttingDownError
        model = self._models.get(request.model)
        if model is None or (model.is_leaving and request.resumed is None):
            raise UnknownModelError(self._why_unknown(request.model))
        if model.refusal_reason and request.resumed is None and not model.has_decode_workers:
            raise NoWorkersError(model.refusal_reason)
        running = self._receivers.get(request.request_id)
        if running is not None and running.record.model != model.name:  # else its dispatcher notices
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        return model

    def _why_unknown(self, name: str) -> str:
        if name in self._models:
            return f"model {name!r} is being removed"
        served = ", ".join(map(repr, self._models)) or "none"
        return f"model {name!r} is not served; served are {served}" if name else f"a model must be named: {served}"

    def cancel(self, request_id: str, reason: EarlyEnd = "abort") -> None:
        """Ends a request early. Unknown ids are ignored."""
        model = self._model_of(request_id)
        if model is not None:
            self._perform(model, model.dispatcher.cancel(request_id, time.monotonic(), reason))

    def turn_ended(self, model: str, request_id: str, tools: Sequence[str]) -> None:
        """The answer of a request that came with a `Retention`, and has ended, calls these tools. Unknown ids and
        models are ignored."""
        found = self._models.get(model)
        if found is not None:
            self._perform(found, found.dispatcher.turn_ended(request_id, tools, time.monotonic()))

    def migrate(self, request_id: str, to: str | None = None) -> None:
        """Moves a running request to another decode worker, once there is room. Unknown ids and workers are ignored."""
        model, peer = self._model_of(request_id), None if to is None else self.worker_port.peer_named(to)
        if model is not None and (to is None or peer is not None):
            self._perform(model, model.dispatcher.migrate(request_id, time.monotonic(), peer))

    def _model_of(self, request_id: str) -> ModelDispatch | None:
        """The model of a request that has not ended."""
        receiver = self._receivers.get(request_id)
        return None if receiver is None else self._models.get(receiver.record.model)

    def snapshot_of(self, model: str) -> Snapshot:
        """The queue, the workers with their credits, and the totals, for metrics and status."""
        snapshot = self._models[model].dispatcher.snapshot(time.monotonic())
        mirrored = self._mirrored.get(model)
        return snapshot if mirrored is None else mirrored.shown_in(snapshot)

    def signals_of(self, model: str) -> Signals:
        """The recent load and how well it was served: what a planner decides from."""
        return self._models[model].dispatcher.signals(time.monotonic(), self._router_id)

    def budgeted_workers(self) -> list[BudgetedWorker]:
        """The workers of all models that obey a limit on their pages, with what they need."""
        budgeted = [one for model in self._models.values() for one in model.dispatcher.budgeted_workers(model.weight)]
        for name, mirrored in self._mirrored.items():
            budgeted += mirrored.dispatch.dispatcher.budgeted_workers(self._models[name].weight)
        return budgeted

    def set_weight(self, model: str, weight: float) -> None:
        """Sets what the model counts where models divide the memory of a host; 1 by default."""
        self._models[model].weight = weight

    def limit_pages(self, peer: PeerId, limit: PageLimit) -> None:
        """Sends a worker its limit."""
        self.worker_port.send(peer, limit)

    async def wait_for_join(self) -> None:
        """Returns when the next worker has joined."""
        await self.worker_port.wait_for_join()

    def worker_profiles_of(self, model: str) -> tuple[RoleProfile, ...]:
        """The service times and the sizes of each role's workers, from which a profile is made."""
        return tuple(worker_profiles(self._models[model].dispatcher.registry))

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
        for mirrored in self._mirrored.values():
            mirrored.close()
        for model in self._models.values():
            self._perform(model, model.dispatcher.finish_all(SHUTTING_DOWN, time.monotonic()))
            model.close()
        await self.worker_port.close()

    def _perform(self, model: ModelDispatch, actions: Iterable[Action]) -> None:
        self.worker_port.perform(model, actions)

    def _deliver(self, action: Emit | EmitScores | Finish) -> None:
        if isinstance(action, Emit):
            self._receivers[action.request_id].deliver(action.token_ids, action.logprobs)
        elif isinstance(action, EmitScores):
            self._receivers[action.request_id].deliver_scores(action.scores)
        else:
            receiver = self._receivers.pop(action.request_id)
            receiver.end(action.finish)
            record = receiver.record
            if action.finish.error is not None or record.events[-1].attempt or log.isEnabledFor(logging.DEBUG):
                log_story(record)
            if not self._receivers:
                self._idle.set()
            model = self._models.get(record.model)
            if model is not None and model.is_leaving and not model.dispatcher.num_requests:
                model.idle.set()

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
