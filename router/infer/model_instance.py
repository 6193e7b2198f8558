"""One instance of a version of a model, from its start to its end: what its process says reaches the version."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from slipstream.router.infer.lives.version_life import ProcessEnd
from slipstream.router.infer.model_calls import CalledModels, ModelCalls
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.warm_up import WarmUp
from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.instances.instance_link import InstanceLink
from slipstream.router.instances.messages import (
    ControlCall,
    Executed,
    InstanceEnd,
    InstanceResponse,
    LogLine,
    ModelCall,
)
from slipstream.router.model_repository.config.config_fault import CODE_WORDS
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest

log = logging.getLogger(__name__)
LEVELS = {"info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR, "verbose": logging.DEBUG}


class InstanceEvents(Protocol):
    """What a version of a model hears of its instances' lives, by their names."""

    def instance_connected(self, name: str, *, is_ready: bool) -> None: ...
    def instance_disconnected(self, name: str) -> None: ...
    def config_completed(self, config: Json) -> None: ...
    def instance_initialized(self, name: str) -> None: ...
    def instance_warmed(self, name: str) -> None: ...
    def instance_failed(self, name: str, cause: str) -> None: ...
    def instance_ended(self, name: str, end: ProcessEnd) -> None: ...
    def control(self, call: ControlCall, link: InstanceLink) -> None: ...


class InstanceResults(Protocol):
    """Where the results of an instance that serves go."""

    def executed(self, name: str, result: Executed) -> None: ...
    def responded(self, name: str, n: int, response: InstanceResponse | None, *, is_final: bool) -> None: ...
    def request_of(self, name: str, n: int) -> ActiveRequest | None: ...


class ModelInstance:
    """InstanceOwner of one process. A process that is started again is another ModelInstance. `results` is there once
    it is initialised. `metrics` are its own families of metrics, by name."""

    def __init__(self, name: str, events: InstanceEvents, calls: CalledModels) -> None:
        self._name = name
        self._events = events
        self._call_target = calls
        self._warm_up: WarmUp | None = None
        self._has_executed = False
        self.metrics: dict[str, CustomFamily] = {}
        self.results: InstanceResults | None = None
        self.link: InstanceLink
        self.calls: ModelCalls

    def linked(self, link: InstanceLink) -> None:
        self.link = link
        self.calls = ModelCalls(self._call_target, link)

    def warm_up(self, executions: Sequence[Sequence[InferRequest]]) -> None:
        """Executes requests before it serves; `instance_warmed` or `instance_failed` of the events follows."""
        self._warm_up = WarmUp(self.link, executions)
        self._continue_warm_up()

    def connected(self, *, is_ready: bool) -> None:
        self._events.instance_connected(self._name, is_ready=is_ready)

    def disconnected(self) -> None:
        self._warm_up = None
        self.calls.cancel_all()
        self._events.instance_disconnected(self._name)

    def completed(self, config: Json) -> None:
        self._events.config_completed(config)

    def ready(self) -> None:
        self._events.instance_initialized(self._name)

    def failed(self, error: str, code: InferErrorCode) -> None:
        self._events.instance_failed(self._name, f"{CODE_WORDS[code]}: {error}")

    def executed(self, result: Executed) -> None:
        if self._warm_up is not None:
            self._warm_up.executed(result)
            self._continue_warm_up()
        elif self.results is not None:
            self._has_executed = True
            self.results.executed(self._name, result)

    def responded(self, n: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        if self._warm_up is not None:
            self._warm_up.responded(n, response, is_final=is_final)
            self._continue_warm_up()
        elif self.results is not None:
            self.results.responded(self._name, n, response, is_final=is_final)

    def called(self, call: ModelCall) -> None:
        results, n = self.results, call.parent
        parent = None if results is None or n is None else results.request_of(self._name, n)
        self.calls.begin(call, parent)

    def call_cancelled(self, call: int) -> None:
        self.calls.cancel(call)

    def controlled(self, call: ControlCall) -> None:
        self._events.control(call, self.link)

    def logged(self, line: LogLine) -> None:
        log.log(LEVELS.get(line.level, logging.INFO), "%s: %s", self._name, line.text)

    def metrics_changed(self, families: list[Json]) -> None:
        for family in families:
            try:
                custom = CustomFamily.of_wire(family)
            except (ValueError, KeyError, TypeError) as error:
                log.warning("%s: a family of metrics is left out: %s", self._name, error)
            else:
                self.metrics[custom.name] = custom

    def ended(self, end: InstanceEnd) -> None:
        self.calls.cancel_all()
        if end.returncode != 0:
            output = f". The end of its output:\n{end.log_tail}" if end.log_tail else ""
            log.warning("%s has ended: %s%s", self._name, end.reason, output)
        reason = f"Internal: {unhealthy(self._name).message} ({end.reason})"
        self._events.instance_ended(self._name, ProcessEnd(reason, self._has_executed, end.is_host_lost))

    def _continue_warm_up(self) -> None:
        warm_up = self._warm_up
        if warm_up is None or not warm_up.is_over:
            return
        self._warm_up = None
        if warm_up.error:
            self._events.instance_failed(self._name, f"Internal: failed to run warmup sample: {warm_up.error}")
        else:
            self._events.instance_warmed(self._name)


def unhealthy(instance: str) -> InferError:
    """Why requests fail that an instance had when it died."""
    text = f"Stub process '{instance}' is not healthy."
    return InferError(text, InferErrorCode.INTERNAL, FailureReason.BACKEND)
