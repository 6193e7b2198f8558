"""Who is in the cluster: its members with the state of each, and how many workers of each model are wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.cluster.supervisor.managed import (
    Managed,
    ManagedGroup,
    ManagedInstanceHost,
    Observer,
)
from slipstream.cluster.supervisor.managed_router import ManagedRouter
from slipstream.cluster.supervisor.members.members import Group, InstanceHostControl, Member, RouterControl
from slipstream.cluster.supervisor.restart_policy import RestartPolicy
from slipstream.cluster.supervisor.supervised_model import SupervisedModel
from slipstream.router.registry.expected_workers import ExpectedWorkers

M = TypeVar("M", bound=Member)


class SupervisedMembers:
    """Changes are shown to the `observer`, and to the router as far as it expects other workers."""

    def __init__(
        self,
        config: ClusterConfig,
        router: RouterControl,
        observer: Observer,
        instance_hosts: Sequence[InstanceHostControl],
    ) -> None:
        self._restart = config.restart
        self.observer = observer
        self.models = {one.name: SupervisedModel(one.decode.engine.max_model_len) for one in config.entries()}
        self.router = ManagedRouter(router, *self._fresh(router))
        self.instance_hosts = [ManagedInstanceHost(host, *self._fresh(host)) for host in instance_hosts]
        self.groups: dict[str, ManagedGroup] = {}
        self.is_settled = False  # the cluster has shown that it works

    def _fresh(self, member: Member) -> tuple[RestartPolicy, MemberStatus, float]:
        status = MemberStatus(member.name, member.role, since=time.time())
        return RestartPolicy(self._restart), status, time.monotonic()

    def all(self) -> tuple[ManagedRouter | ManagedInstanceHost | ManagedGroup, ...]:
        return (self.router, *self.instance_hosts, *self.groups.values())

    @property
    def statuses(self) -> list[MemberStatus]:
        return [managed.status for managed in self.all()]

    def add(self, group: Group) -> ManagedGroup:
        """A further group, which is not started yet."""
        assert group.name not in self.groups
        managed = self.groups[group.name] = ManagedGroup(group, *self._fresh(group))
        managed.status.model, managed.status.version = group.model, group.version
        return managed

    def forget(self, managed: ManagedGroup) -> None:
        """A group has left. Its resources are given back."""
        managed.member.release()
        if self.groups.get(managed.status.name) is managed:  # the name may belong to another group by now
            del self.groups[managed.status.name]
            self.note(managed, "stopped", "has left the cluster")

    def of_model(self, name: str) -> list[ManagedGroup]:
        return [managed for managed in self.groups.values() if managed.member.model == name]

    @property
    def expected(self) -> dict[str, ExpectedWorkers]:
        """How many groups of each role are wanted, by model."""
        return {name: model.expected(self.of_model(name), self.is_settled) for name, model in self.models.items()}

    async def tell_wanted(self) -> None:
        """Tells the observer and the router how many groups are wanted now."""
        self.observer.wants(self.expected)
        await self.router.expect(self.expected)

    def serves(self, managed: Managed[M], detail: str) -> None:
        """A member serves, for the first time or again."""
        managed.policy.up(time.monotonic())
        managed.last_death = ""
        if isinstance(managed, ManagedGroup) and managed.member.role == "decode":
            self.models[managed.member.model].has_served = True
        if managed.status.state != "ready":
            managed.ready.set()
            self.note(managed, "ready", detail)

    def note(self, managed: Managed[M], state: MemberState, detail: str) -> None:
        """A member's state, with a detail for people."""
        status = managed.status
        if status.state != state:
            status.state, status.since = state, time.time()
            managed.since_s = time.monotonic()
        status.detail = detail
        status.pids, status.host = managed.member.pids, managed.member.host
        self.observer.changed(status, self.statuses)
