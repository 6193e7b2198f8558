"""One load of one version of a model: its life, its instances and its requests, on the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import orjson

from slipstream.router.infer.instance_plan import PlannedInstance, planned_instances
from slipstream.router.infer.model_calls import CalledModels
from slipstream.router.infer.model_instance import ModelInstance, unhealthy
from slipstream.router.infer.requests.active_request import ActiveRequest, Canceller
from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.infer.requests.request_runner import RequestRunner
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.infer.requests.version_dispatch import DispatchOptions
from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.infer.version_life import Action, Do, ProcessEnd, VersionLife
from slipstream.router.infer.warm_up_samples import warm_up_requests
from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.instance_owner import InstanceOwner
from slipstream.router.instances.launches import new_launch_id
from slipstream.router.instances.messages import ControlCall, InitializeInstance, StartInstance
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import ModelPhase, ModelSpec

log = logging.getLogger(__name__)


class InstanceLauncher(Protocol):
    """What starts processes: the instance port."""

    def launch(self, start: StartInstance, owner: InstanceOwner, host: str = "") -> InstanceLink: ...


class Controls(Protocol):
    """What a model may ask of the repository."""

    def control(self, call: ControlCall, link: InstanceLink) -> None: ...


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """What all versions have in common. `stop_grace_s` is how long a model may take to finalize. `backend_config` has
    settings by backend; those of "" are for all."""

    launcher: InstanceLauncher
    calls: CalledModels
    controls: Controls
    options: DispatchOptions
    stop_grace_s: float = 30.0
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def settings_of(self, backend: str) -> dict[str, str]:
        """Those of `backend_config` for a backend, and for all."""
        return {**self.backend_config.get("", {}), **self.backend_config.get(backend, {})}


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
        self._plan: dict[str, PlannedInstance] = {}
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
            self._plan = {one.name: one for one in planned_instances(draft.instance_groups)}
            self._life = VersionLife(list(self._plan), completes=draft.is_completed_by_model)
            if not draft.is_completed_by_model:
                await self._accept(None)
        except LoadError as error:
            self._perform(self._life.given_up(error.cause))
        else:
            self._perform(self._life.begin())
        await self._loaded

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
        return unhealthy(next(iter(self._plan))) if self._life.is_down else None

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

    def instance_ended(self, name: str, end: ProcessEnd) -> None:
        launch, gate = self._instances.pop(name).link.start.launch, self._context.options.gate
        if gate is not None:
            gate.remove(launch)
        self._perform(self._life.ended(name, end, self._loop.time()))
        if self._life.is_down:
            self.runner.fail_all(unhealthy(name))

    def control(self, call: ControlCall, link: InstanceLink) -> None:
        self._context.controls.control(call, link)

    async def _complete(self, config: Json) -> None:
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
            self.runner = RequestRunner(spec, self.recorder, self._context.options, self._idle)
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
                self._initialize(name)
            case Do.WARM:
                self._instances[name].warm_up(self._warm_up)
            case Do.SERVE:
                self._serve(name)
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
        draft, planned = self.draft, self._plan[name]
        start = StartInstance(
            launch=new_launch_id(),
            name=name,
            model=draft.name,
            version=self.version,
            backend=draft.backend,
            folder=str(draft.folder),
            version_folder=str(draft.folder / self.version),
            model_file=draft.model_file,
            parameters=draft.parameters,
            kind=planned.kind,
            device=planned.device,
            revision=draft.revision_of(self.version),
            settings=self._context.settings_of(draft.backend),
            backend_file=draft.backend_file,
        )
        instance = self._instances[name] = ModelInstance(name, self, self._context.calls)
        instance.linked(self._context.launcher.launch(start, instance))

    def _enter_gate(self, name: str) -> InferError | None:
        """Returns why it may not execute."""
        gate, planned = self._context.options.gate, self._plan[name]
        if gate is not None:
            try:
                gate.add(self._instances[name].link.start.launch, planned.group, planned.device, self._turn_soon)
            except InferError as error:
                return error
        return None

    def _turn_soon(self) -> None:
        """An instance that had to wait at the gate may try again."""
        self.runner.turn_soon()

    def _initialize(self, name: str) -> None:
        spec, planned, instance = self.spec, self._plan[name], self._instances[name]
        args = {
            "model_config": spec.config_json.decode(),
            "model_instance_kind": planned.kind_name,
            "model_instance_device_id": str(planned.device),
            "model_instance_name": name,
            "model_repository": str(spec.folder),
            "model_version": self.version,
            "model_name": spec.name,
        }
        outputs = {tensor.name: tensor.datatype for tensor in spec.outputs}
        if spec.sequence_batching is not None:
            outputs.update({state.output_name: state.datatype for state in spec.sequence_batching.states})
        instance.link.initialize(InitializeInstance(args, outputs, spec.is_decoupled))

    def _serve(self, name: str) -> None:
        instance = self._instances[name]
        instance.results = self.runner
        self.runner.add_instance(name, instance.link, instance.link.start.launch)

    def _end(self) -> None:
        """All instances are gone."""
        if self._is_complete:
            self.runner.fail_all(unhealthy(next(iter(self._plan), self.draft.name)))
            self.runner.close()
        self._fail_load()
        self._has_ended.set()
        self._on_end(self)

    def _fail_load(self) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(LoadError(self._life.reason))
