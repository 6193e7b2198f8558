"""The instance groups that a version has now, which may be others than those of its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.infer.lives.instance_change import InstanceChange
from slipstream.router.infer.lives.instance_plan import PlannedInstance, can_become, count_in, plan_of, scaled
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.model_spec import InstanceGroup

AS_CONFIGURED = InstanceCountsConfig()


class InstanceGroups:
    """`plan` has the instances that these ask for, by name. `counts` are how many models have, by their names, where
    that is not as their configurations say. One change is made after the other."""

    def __init__(self, counts: Mapping[str, InstanceCountsConfig]) -> None:
        self._counts = counts
        self._groups: tuple[InstanceGroup, ...] = ()
        self._lock = asyncio.Lock()
        self._change: InstanceChange | None = None
        self.plan: dict[str, PlannedInstance] = {}

    @property
    def count(self) -> int:
        return count_in(self._groups)

    @property
    def is_changing(self) -> bool:
        return self._change is not None

    def begin(self, draft: ModelDraft) -> None:
        """Raises LoadError."""
        self._groups = self.of(draft)
        self.plan = plan_of(self._groups)

    def of(self, draft: ModelDraft) -> tuple[InstanceGroup, ...]:
        """Those with which a version begins. Raises LoadError."""
        groups, counts = draft.instance_groups, self._counts.get(draft.name, AS_CONFIGURED)
        configured = count_in(groups)
        return scaled(groups, counts.first_count(configured)) if configured else groups

    def can_become(self, draft: ModelDraft) -> bool:
        """Whether some instances come and others go, and the rest stays as it is. Raises LoadError."""
        return can_become(self.plan, plan_of(self.of(draft)))

    async def set_count(self, count: int, resize: Callable[[Sequence[str]], None]) -> None:
        """As `change`."""
        await self.change(scaled(self._groups, count), resize)

    async def change(self, groups: tuple[InstanceGroup, ...], resize: Callable[[Sequence[str]], None]) -> None:
        """`resize` takes the names of the instances that there are to be. Returns once those that are new serve.
        Raises LoadError; then it is as before."""
        async with self._lock:
            before, plan = (self._groups, self.plan), plan_of(groups)
            change = self._change = InstanceChange(plan.keys() - self.plan.keys())
            self._groups, self.plan = groups, plan
            try:
                resize(list(plan))
                await change.done
            except (LoadError, asyncio.CancelledError):
                self._groups, self.plan = before
                with suppress(LoadError):  # it ends as a whole
                    resize(list(self.plan))
                raise
            finally:
                self._change = None

    def served(self, name: str) -> None:
        if self._change is not None:
            self._change.served(name)

    def failed(self, name: str, cause: str) -> None:
        if self._change is not None:
            self._change.failed(name, cause)

    def give_up(self, cause: str) -> None:
        """The version ends."""
        if self._change is not None:
            self._change.give_up(cause)
