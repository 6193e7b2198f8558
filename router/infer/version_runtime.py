"""One load of one version of a model: its life, its instances and its requests, on the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace

import orjson

from slipstream.router.infer.lives.instance_groups import InstanceGroups
from slipstream.router.infer.lives.instance_start import initialize_of, start_of
from slipstream.router.infer.lives.version_life import Action, Do, ProcessEnd, VersionLife
from slipstream.router.infer.model_instance import ModelInstance, unhealthy
from slipstream.router.infer.requests.active_request import ActiveRequest, Canceller
from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.infer.requests.request_runner import RequestRunner
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.runtime_context import RuntimeContext
from slipstream.router.infer.served_version import ScaledInstances, ServedVersion
from slipstream.router.infer.warm_up_samples import warm_up_requests
from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.launches import placed_at
from slipstream.router.instances.messages import ControlCall
from slipstream.router.instances.placement.host_choice import instance_to_move
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import ModelPhase, ModelSpec

log = logging.getLogger(__name__)


class VersionRuntime:
    """`load` until it is ready; then `submit`; `unload` ends it. `on_end` is called once its instances are gone."""

    def __init__(
        self,
        context: RuntimeContext,
        draft: ModelDraft,
        version: str,
        recorder: StatisticsRecorder,
        on_end: Callable[[ServedVersion], None],
    ) -> None:
        self.draft = draft
        self.version = version
        self.recorder = recorder
        self._context = context
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._groups = InstanceGroups(context.counts)
        self._completed: Json | None = None
        self._life = VersionLife((), completes=False)
        self._instances: dict[str, ModelInstance] = {}
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._restart: asyncio.TimerHandle | None = None
        self._warm_up: Sequence[Sequence[InferRequest]] = ()
        self._is_complete = False
        self._has_ended = asyncio.Event()
        self.spec: ModelSpec  # these three are there once the configuration is complete
        self.check: RequestCheck
        self.runner: RequestRunner

    @property
    def phase(self) -> ModelPhase:
        return self._life.phase

    @property
    def is_down(self) -> bool:
        return self._life.is_down

    @property
    def num_waiting(self) -> int:
        return self.runner.num_waiting if self._is_complete else 0

    @property
    def canceller(self) -> Canceller:
        return self.runner

    @property
    def custom_families(self) -> Sequence[CustomFamily]:
        return [family for instance in self._instances.values() for family in instance.metrics.values()]

    async def load(self) -> None:
        """Returns once all instances serve. Raises LoadError; then its processes are being stopped, and `on_end`
        follows, as it does after `unload`."""
        draft = self.draft
        try:
            self._groups.begin(draft)
            self._life = VersionLife(list(self._groups.plan), completes=draft.is_completed_by_model)
            if not draft.is_completed_by_model:
                await self._accept(None)
        except LoadError as error:
            self._perform(self._life.given_up(error.cause))
        else:
            self._perform(self._life.begin())
        await self._loaded

    @property
    def instances(self) -> ScaledInstances:
        return self

    @property
    def count(self) -> int:
        return self._groups.count

    @property
    def hosts(self) -> Mapping[str, int]:
        return Counter(one.link.host for one in self._instances.values() if one.results is not None)

    @property
    def is_changing(self) -> bool:
        return self._groups.is_changing or self._life.is_changing

    @property
    def busy_s(self) -> float:
        return self.runner.busy_s

    def can_follow(self, draft: ModelDraft) -> bool:
        return self._groups.can_become(draft)

    async def follow(self, draft: ModelDraft) -> None:
        if draft.instance_groups != self.draft.instance_groups:
            spec = await asyncio.to_thread(draft.complete, self.version, self._completed)
            await self._groups.change(self._groups.of(draft), self._resize)
            self.spec = spec
        self.draft = draft

    async def set_count(self, count: int) -> None:
        await self._groups.set_count(count, self._resize)

    def spread(self) -> None:
        hosts = self._context.launcher.host_names
        if len(hosts) > 1 and self._life.phase is ModelPhase.READY and not self._life.is_changing:
            links = [instance.link for instance in self._instances.values()]
            found = instance_to_move([placed_at(link.start, link.host) for link in links], hosts)
            if found is not None:
                log.info("instance %s of model %r moves from host %s", found.name, self.draft.name, found.host)
                self._perform(self._life.move(found.name))

    def _resize(self, names: Sequence[str]) -> None:
        """Raises LoadError."""
        if self._life.phase is not ModelPhase.READY:
            raise LoadError(f"version {self.version} of model '{self.draft.name}' does not serve")
        self._perform(self._life.resize(names))

    def submit(self, active: ActiveRequest) -> None:
        """Queues a request that has been checked. Raises InferError."""
        refusal = self._refusal()
        if refusal is not None:
            active.record.ended(time.monotonic(), "rejected", refusal)
            raise refusal
        self.runner.submit(active)

    def _refusal(self) -> InferError | None:
        if self._life.phase is not ModelPhase.READY:
            name = f"'{self.draft.name}' version {self.version}"
            message = f"Request for unknown model: {name} is not at ready state"
            return InferError(message, InferErrorCode.UNAVAILABLE)
        return unhealthy(next(iter(self._groups.plan))) if self._life.is_down else None

    def unload(self) -> None:
        """Lets requests end, then stops the instances."""
        has_requests = self._is_complete and self.runner.num_open > 0
        if has_requests:
            self.runner.drain()
        self._perform(self._life.unload(has_requests=has_requests))

    def serve_beside(self, versions: tuple[str, ...]) -> None:
        """It goes on, while these versions of its model are served from now on."""
        self.spec = replace(self.spec, versions=versions)

    async def wait_for_end(self) -> None:
        """Until no process of it is left."""
        await self._has_ended.wait()

    def instance_connected(self, name: str, *, is_ready: bool) -> None:
        """The first time is that at which its launch is certain."""
        refusal = self._enter_gate(name)
        if refusal is None:
            self._perform(self._life.connected(name, self._loop.time(), is_ready=is_ready))
        else:
            self.instance_failed(name, f"Invalid argument: {refusal.message}")

    def instance_disconnected(self, name: str) -> None:
        self._perform(self._life.disconnected(name))

    def config_completed(self, config: Json) -> None:
        self._begin(self._complete(config))

    def instance_initialized(self, name: str) -> None:
        self._perform(self._life.initialized(name))

    def instance_warmed(self, name: str) -> None:
        self._perform(self._life.warmed(name, self._loop.time()))

    def instance_failed(self, name: str, cause: str) -> None:
        self._perform(self._life.failed(name, cause))
        self._groups.failed(name, cause)

    def instance_ended(self, name: str, end: ProcessEnd) -> None:
        launch, gate = self._instances.pop(name).link.start.launch, self._context.options.gate
        if gate is not None:
            gate.remove(launch)
        self._perform(self._life.ended(name, end, self._loop.time()))
        if not end.is_host_lost:
            self._groups.failed(name, end.reason)
        if self._life.is_down:
            self.runner.fail_all(unhealthy(name))

    def control(self, call: ControlCall, link: InstanceLink) -> None:
        self._context.controls.control(call, link)

    async def _complete(self, config: Json) -> None:
        self._completed = config
        try:
            await self._accept(config)
        except LoadError as error:
            self._perform(self._life.given_up(error.cause))
        else:
            self._perform(self._life.completed(self._loop.time()))

    async def _accept(self, config: Json | None) -> None:
        """Takes the complete configuration. Raises LoadError."""
        try:
            spec = await asyncio.to_thread(self.draft.complete, self.version, config)
            self._warm_up = await asyncio.to_thread(warm_up_requests, spec)
            self.spec, self.check = spec, RequestCheck(spec)
            self.runner = RequestRunner(spec, self.recorder, self._context.options, self._idle, self._emptied)
        except LoadError:
            raise
        except (OSError, ValueError) as error:
            raise LoadError(f"Invalid argument: {error}") from error
        except Exception as error:
            log.exception("version %s of model %r: its configuration cannot be taken", self.version, self.draft.name)
            raise LoadError(f"Internal: {error!r}") from error
        self._is_complete = True

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _idle(self) -> None:
        """The last request has ended."""
        if self._life.phase is ModelPhase.UNLOADING:
            self._perform(self._life.drained())

    def _emptied(self, name: str) -> None:
        """The requests have ended of an instance that leaves."""
        self._perform(self._life.emptied(name))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._perform_one(action.do, action.instance)
        next_s, timer = self._life.next_time, self._restart
        if timer is not None and timer.when() != next_s:
            timer.cancel()
            timer = self._restart = None
        if timer is None and next_s is not None:
            self._restart = self._loop.call_at(next_s, self._restart_due)

    def _restart_due(self) -> None:
        self._restart = None
        self._perform(self._life.due(self._loop.time()))

    def _perform_one(self, do: Do, name: str) -> None:
        match do:
            case Do.START:
                self._start(name)
            case Do.COMPLETE:
                self._instances[name].link.complete_config(orjson.dumps(self.draft.config_to_complete()))
            case Do.INITIALIZE:
                initialize = initialize_of(self.spec, self.version, self._groups.plan[name])
                self._instances[name].link.initialize(initialize)
            case Do.WARM:
                self._instances[name].warm_up(self._warm_up)
            case Do.SERVE:
                self._serve(name)
            case Do.DRAIN:
                self.runner.retire_instance(name)
            case Do.RETIRE:
                self.runner.remove_instance(name, unhealthy(name))
            case Do.STOP:
                self._instances[name].link.stop(self._context.stop_grace_s)
            case Do.LOADED:
                if not self._loaded.done():
                    self._loaded.set_result(None)
            case Do.FAILED:
                self._fail_load()
            case Do.END:
                self._end()

    def _start(self, name: str) -> None:
        settings = self._context.settings_of(self.draft.backend)
        start = start_of(self.draft, self.version, self._groups.plan[name], settings)
        instance = self._instances[name] = ModelInstance(name, self, self._context.calls)
        instance.linked(self._context.launcher.launch(start, instance))

    def _enter_gate(self, name: str) -> InferError | None:
        """Returns why it may not execute."""
        gate, planned = self._context.options.gate, self._groups.plan[name]
        if gate is not None:
            try:
                gate.add(self._instances[name].link.start.launch, planned.group, planned.device, self._turn_soon)
            except InferError as error:
                return error
        return None

    def _turn_soon(self) -> None:
        """An instance that had to wait at the gate may try again."""
        self.runner.turn_soon()

    def _serve(self, name: str) -> None:
        instance = self._instances[name]
        instance.results = self.runner
        self.runner.add_instance(name, instance.link, instance.link.start.launch)
        self._groups.served(name)
        self._loop.call_soon(self.spread)

    def _end(self) -> None:
        """All instances are gone."""
        if self._is_complete:
            self.runner.fail_all(unhealthy(next(iter(self._groups.plan), self.draft.name)))
            self.runner.close()
        self._fail_load()
        self._groups.give_up("it was unloaded")
        self._has_ended.set()
        self._on_end(self)

    def _fail_load(self) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(LoadError(self._life.reason))
