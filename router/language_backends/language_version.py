"""A version of a model of the backends `vllm` and `tensorrtllm`: it has no instances, a served model answers for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.infer.requests.active_request import ActiveRequest, Canceller
from slipstream.router.infer.requests.request_answers import RequestAnswers
from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.infer.requests.request_counts import RequestCounts
from slipstream.router.infer.requests.statistics_recorder import ComputeTimes, StatisticsRecorder, nanoseconds
from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.instances.messages import InstanceResponse
from slipstream.router.language_backends.forms.form_choice import form_of
from slipstream.router.language_backends.forms.tensor_datatypes import check_datatypes
from slipstream.router.language_backends.generation.generation_run import GenerationRun, Generations
from slipstream.router.language_backends.generation.infer_failures import GENERATION_ERRORS, infer_error
from slipstream.router.language_backends.generation.tensor_generation import RequestForm, TensorGeneration
from slipstream.router.language_backends.model_links import ModelLink, ModelLinks
from slipstream.router.language_backends.settings.language_settings import LanguageSettings
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.model_spec import ModelPhase, ModelSpec
from slipstream.router.tensors.tensor import Tensor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LanguageContext:
    """What all versions have in common. `running` are their requests."""

    generations: Generations
    links: ModelLinks
    cache: ResponseCache | None = None
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def drain(self, deadline_s: float) -> None:
        """Lets the requests end that run, and those that follow from them, for at most `deadline_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self.running:
                    await asyncio.wait(self.running)


class LanguageVersion:
    """ServedVersion. Requests do not wait here: the dispatcher of the served model queues them."""

    def __init__(
        self,
        context: LanguageContext,
        draft: ModelDraft,
        version: str,
        recorder: StatisticsRecorder,
        on_end: Callable[[ServedVersion], None],
    ) -> None:
        self.draft = draft
        self.version = version
        self.recorder = recorder
        self.custom_families: Iterable[CustomFamily] = ()
        self._context = context
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._phase = ModelPhase.LOADING
        self._link: ModelLink | None = None
        self._running: dict[ActiveRequest, asyncio.Task[None]] = {}
        self._has_ended = asyncio.Event()
        self._form: RequestForm
        self._answers: RequestAnswers
        self._counts: RequestCounts
        self.spec: ModelSpec  # these two are there once it is loaded
        self.check: RequestCheck

    @property
    def canceller(self) -> Canceller:
        return self

    @property
    def num_waiting(self) -> int:
        """Requests that have no token yet."""
        return sum(not active.record.executions for active in self._running)

    @property
    def is_down(self) -> bool:
        return self._link is not None and not self._link.serves

    @property
    def instances(self) -> None:
        return None

    async def load(self) -> None:
        try:
            settings = await asyncio.to_thread(LanguageSettings.read, self.draft, self.version)
            settings.warn(self.draft.name)
            await self._take(settings)
            self._link = await self._context.links.link(self.draft, self.version, settings)
            await self._link.wait_until_served()
        except BaseException:
            self.unload()
            raise
        if self._phase is ModelPhase.LOADING:
            self._phase = ModelPhase.READY

    def submit(self, active: ActiveRequest) -> None:
        now = time.monotonic()
        try:
            if self._phase is not ModelPhase.READY:
                name = f"'{self.draft.name}' version {self.version}"
                message = f"Request for unknown model: {name} is not at ready state"
                raise InferError(message, InferErrorCode.UNAVAILABLE)
            asked = self._form.read(active)
        except InferError as error:
            refused = self._form.failure(error)
            active.record.ended(now, "rejected", refused)
            raise refused from None
        active.queued_s = active.started_s = now
        self._answers.expect(active)
        if self._answers.finds(active):
            self._loop.call_soon(self._answers.send_found, now)
            return
        task = self._loop.create_task(self._serve(active, asked), name=f"generate {active.record.request_id}")
        self._running[active] = task
        self._context.running.add(task)
        task.add_done_callback(self._context.running.discard)
        task.add_done_callback(partial(self._served, active))

    def cancel(self, active: ActiveRequest) -> None:
        """Canceller."""
        task = self._running.get(active)
        if task is not None and not active.has_ended:
            self._answers.fail(active, active.cancellation, time.monotonic())
            task.cancel()

    def unload(self) -> None:
        if self._phase in (ModelPhase.LOADING, ModelPhase.READY):
            self._phase = ModelPhase.UNLOADING
            if not self._running:
                self._loop.call_soon(self._end)

    def serve_beside(self, versions: tuple[str, ...]) -> None:
        self.spec = replace(self.spec, versions=versions)

    async def wait_for_end(self) -> None:
        await self._has_ended.wait()

    async def _take(self, settings: LanguageSettings) -> None:
        """The configuration with what the backend completes. Raises LoadError."""
        draft = self.draft
        form = self._form = form_of(draft.backend, draft.input_names, settings)
        config = draft.config_to_complete()
        form.complete(config)
        try:
            completed = config if draft.options.auto_complete else None
            spec = await asyncio.to_thread(draft.complete, self.version, completed)
            check_datatypes(spec)
        except (OSError, ValueError) as error:
            raise LoadError(f"Invalid argument: {error}") from error
        form.bind(spec)
        self.spec, self.check = spec, RequestCheck(spec)
        self._counts = RequestCounts(self.recorder, is_decoupled=spec.is_decoupled)
        self._answers = RequestAnswers(spec, self._counts, self._context.cache)

    async def _serve(self, active: ActiveRequest, asked: TensorGeneration) -> None:
        assert self._link is not None
        if asked.stops:
            self._stop(active)
            return
        respond = partial(self._respond, active)
        run = GenerationRun(self._context.generations, self._link.model, asked, active, respond)
        try:
            await run.to_end(priority_of(self.spec, active.request.priority))
        except GENERATION_ERRORS as error:
            self._answers.fail(active, self._form.failure(infer_error(error)), time.monotonic())
        except Exception as error:
            log.exception("a request of model %r has failed", self.draft.name)
            failure = InferError(f"{type(error).__name__}: {error}", InferErrorCode.INTERNAL)
            self._answers.fail(active, self._form.failure(failure), time.monotonic())

    def _stop(self, active: ActiveRequest) -> None:
        """Cancels the requests that have the same id and the same client."""
        wanted = client_id(active)
        for other in list(self._running):
            if other is not active and wanted[0] and client_id(other) == wanted:
                self.cancel(other)
        self._respond(active, [], True)

    def _respond(self, active: ActiveRequest, outputs: list[Tensor], is_final: bool) -> None:
        if active.has_ended:
            return
        now, response = time.monotonic(), InstanceResponse(outputs)
        self._counts.responded(active, response, now)
        if is_final:
            times = ComputeTimes(infer_ns=nanoseconds(now - active.started_s))
            self._counts.executed(active.batch_size, times)
        self._answers.respond(active, response, is_final=is_final, now=now)

    def _served(self, active: ActiveRequest, task: asyncio.Task[None]) -> None:
        """Nothing of a request is left."""
        del self._running[active]
        if not active.has_ended:  # it was cancelled before it could begin, or with all tasks
            self._answers.fail(active, active.cancellation, time.monotonic())
        active.release_inputs()
        if self._phase is ModelPhase.UNLOADING and not self._running:
            self._end()

    def _end(self) -> None:
        if not self._has_ended.is_set():
            if self._link is not None:
                self._link.release()
            self._has_ended.set()
            self._on_end(self)


def priority_of(spec: ModelSpec, level: int) -> int:
    """The priority of a generation: 0 is that of the model's default level, and less is more urgent."""
    batching = spec.dynamic_batching
    if batching is None or not batching.priority_levels or not 1 <= level <= batching.priority_levels:
        return 0
    return level - batching.default_priority_level


def client_id(active: ActiveRequest) -> tuple[str, str]:
    return active.request.id, active.request.tenant
