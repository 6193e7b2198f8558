"""Looks at the instances of models again and again, and carries out what the scaler decides, or a planner."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.infer.scaling.instance_scaler import InstanceDemand, InstanceScaler, ScaleDecision, VersionKey
from slipstream.router.infer.served_version import ScaledInstances, ServedVersion
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.tensor_signals import TensorSignals

LOOK_EVERY_S = 1.0
NUM_DECISIONS = 1000
PLANNED_S = 60.0  # since a planner has looked: so long the numbers are as it says

log = logging.getLogger(__name__)


class InstanceScaling:
    """`counts` are those of the deployment, by model; `set_counts` changes them. `decisions` are the latest ones. While
    a planner asks for `signals`, it decides, and the scaler does not."""

    def __init__(self, service: TensorService, counts: dict[str, InstanceCountsConfig], budget: int | None) -> None:
        self._service = service
        self._counts = counts
        self._scaler = InstanceScaler(counts, budget)
        self._busy: dict[VersionKey, tuple[ScaledInstances, float, float]] = {}  # busy seconds, and when
        self._changes: dict[VersionKey, asyncio.Task[None]] = {}
        self._planned_until_s = float("-inf")
        self.decisions: deque[ScaleDecision] = deque(maxlen=NUM_DECISIONS)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                self.look(asyncio.get_running_loop().time())
        finally:
            for change in self._changes.values():
                change.cancel()

    def signals(self) -> list[TensorSignals]:
        """Of all versions with instances: what a planner decides from."""
        now = asyncio.get_running_loop().time()
        self._planned_until_s = now + PLANNED_S
        found = []
        for name, runtime in self._service.runtimes():
            instances = runtime.instances
            if instances is None or not instances.count:
                continue
            is_changing = instances.is_changing or (name, runtime.version) in self._changes
            queue = runtime.recorder.statistics.durations.queue
            found.append(
                TensorSignals(
                    name,
                    runtime.version,
                    instances.count,
                    is_changing,
                    runtime.num_waiting,
                    now,
                    instances.busy_s,
                    queue.count,
                    queue.ns / 1e9,
                )
            )
        return found

    def resize(self, model: str, version: str, count: int, reason: str) -> None:
        """A planner says how many instances a version has. One that is gone meanwhile is left out."""
        versions = self._service.models.get(model)
        runtime = versions.serving.get(version) if versions is not None else None
        instances = runtime.instances if runtime is not None else None
        if instances is not None and instances.count != count:
            now = asyncio.get_running_loop().time()
            self._begin(ScaleDecision((model, version), instances.count, count, reason, now))

    def look(self, now: float) -> None:
        if now < self._planned_until_s:
            self._busy.clear()
            return
        found = {(name, runtime.version): runtime for name, runtime in self._elastic()}
        for version in self._busy.keys() - found.keys():
            del self._busy[version]
            self._scaler.forget(version)
        demands = {version: self._demand(now, version, runtime) for version, runtime in found.items()}
        known = {version: demand for version, demand in demands.items() if demand is not None}
        others = [runtime.instances for version, runtime in found.items() if version not in known]
        num_others = sum(instances.count for instances in others if instances is not None)
        for decision in self._scaler.look(now, known, num_others):
            self._begin(decision)

    def set_counts(self, model: str, config: InstanceCountsConfig) -> None:
        """An operator says how many there are to be, and in which bounds."""
        self._counts[model] = config
        versions = self._service.models.get(model)
        for version, runtime in versions.serving.items() if versions is not None else ():
            instances = runtime.instances
            if instances is not None and config.first_count(instances.count) != instances.count:
                now = asyncio.get_running_loop().time()
                after = config.first_count(instances.count)
                self._begin(ScaleDecision((model, version), instances.count, after, "an operator says so", now))

    def status(self, model: str = "") -> list[InstancesStatus]:
        """Of all versions with instances, or of those of a model."""
        now = asyncio.get_running_loop().time()
        latest = {decision.version: in_words(decision, now) for decision in self.decisions}
        found = []
        for name, runtime in self._service.runtimes():
            if runtime.instances is None or model not in ("", name):
                continue
            config = self._counts.get(name)
            instances, version = runtime.instances, (name, runtime.version)
            status = InstancesStatus(name, runtime.version, instances.count, dict(instances.hosts))
            status = replace(status, is_changing=instances.is_changing or version in self._changes)
            if config is not None and config.is_elastic:
                status = replace(status, min=config.min, max=config.max)
            found.append(replace(status, latest=latest.get(version, "")))
        return found

    def _elastic(self) -> Iterator[tuple[str, ServedVersion]]:
        for name, runtime in self._service.runtimes():
            config = self._counts.get(name)
            if config is not None and config.is_elastic and runtime.instances is not None and runtime.instances.count:
                yield name, runtime

    def _demand(self, now: float, version: VersionKey, runtime: ServedVersion) -> InstanceDemand | None:
        """None: it is changing, or was not looked at before."""
        instances = runtime.instances
        assert instances is not None
        before, self._busy[version] = self._busy.get(version), (instances, instances.busy_s, now)
        if before is None or before[0] is not instances or instances.is_changing or version in self._changes:
            return None
        busy = (instances.busy_s - before[1]) / max(now - before[2], 1e-6)
        return InstanceDemand(instances.count, busy, runtime.num_waiting)

    def _begin(self, decision: ScaleDecision) -> None:
        model, version = decision.version
        change = f"{decision.before} -> {decision.after} instances: {decision.reason}"
        log.info("model %r version %s: %s", model, version, change)
        self.decisions.append(decision)
        task = asyncio.get_running_loop().create_task(self._change(decision))
        self._changes[decision.version] = task
        task.add_done_callback(lambda done: self._changed(decision.version, done))

    def _changed(self, version: VersionKey, done: asyncio.Task[None]) -> None:
        if self._changes.get(version) is done:
            del self._changes[version]

    async def _change(self, decision: ScaleDecision) -> None:
        model, version = decision.version
        runtime = self._service.models[model].serving.get(version)
        if runtime is None or runtime.instances is None:
            return
        try:
            await runtime.instances.set_count(decision.after)
        except LoadError as error:
            log.warning("model %r version %s stays at %d instances: %s", model, version, decision.before, error.cause)
            now, cause = asyncio.get_running_loop().time(), error.cause.partition("\n")[0]
            self.decisions.append(ScaleDecision(decision.version, decision.after, decision.before, cause, now))
            self._scaler.failed(decision.version, now)


def in_words(decision: ScaleDecision, now: float) -> str:
    return f"{decision.before} -> {decision.after} {now - decision.at_s:.0f} s ago: {decision.reason}"
