"""Sets how many instances the models of a repository have (`InstanceCountsPort`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.planner.planner_decision import SetInstances
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.tensor_signals import TensorSignals

AS_CONFIGURED = InstanceCountsConfig()


class TensorInstanceCounts:
    """What has been set is in the configuration as it is served, so that the next router and the next driver go on with
    it."""

    def __init__(self, router: ManagedRouter, models: ServedModels, state_file: StateFile, changes: ChangeLog) -> None:
        self._router = router
        self._models = models
        self._state_file = state_file
        self._changes = changes

    async def status(self, model: str) -> Sequence[InstancesStatus]:
        if not self._models.config.repository.is_on:
            raise FleetError("conflict", "model", "this cluster serves no model repository")
        try:
            return await self._router.instances_status(model)
        except OSError as error:  # TimeoutError is one
            raise FleetError("unavailable", "model", f"the router does not answer: {error}") from None

    def counts(self, model: str) -> InstanceCountsConfig:
        return self._models.config.repository.instances.get(model, AS_CONFIGURED)

    async def set_counts(self, model: str, counts: InstanceCountsConfig, by: Author) -> None:
        if not await self.status(model):
            raise FleetError("unknown", "model", f"no version of {model!r} with instances serves")
        before = self.counts(model)
        self._models.set_instance_counts(model, counts)
        self._state_file.write()
        await self._router.set_instance_counts(model, counts)
        self._changes.note(by, "scale", model, in_words(before), in_words(counts), model=model)

    async def signals(self) -> Sequence[TensorSignals]:
        """The load of all instances. Raises OSError while there is no router to ask."""
        return await self._router.tensor_signals()

    async def resize(self, action: SetInstances, reason: str) -> None:
        """A planner says how many instances a version has. What operators have set stays, but for the number with which
        the next router and the next driver begin. Raises OSError."""
        counts = replace(self.counts(action.model), count=action.count)
        self._models.set_instance_counts(action.model, counts)
        self._state_file.write()
        await self._router.resize_instances(action.model, action.version, action.count, reason, counts)


def in_words(counts: InstanceCountsConfig) -> str:
    count = "as its configuration says" if counts.count is None else str(counts.count)
    return f"{count}, {counts.min} to {counts.max}" if counts.is_elastic else count
