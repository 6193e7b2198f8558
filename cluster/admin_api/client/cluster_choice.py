"""The options of operators' commands that choose a cluster: one on this machine, or one elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_address import AdminAddress, takes_address
from slipstream.cluster.admin_api.client.admin_port import AdminPort
from slipstream.cluster.admin_api.client.local_admin import LocalAdmin
from slipstream.cluster.state.clusters_here import cluster_here

NAME = click.option("--name", metavar="CLUSTER", help="The cluster, if several run on this machine.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the last answer as JSON, for programs.")
MODEL = click.option("--model", metavar="MODEL", help="The model, where the cluster has several.")
REASON = click.option("--reason", metavar="TEXT", default="", help="Why; it stands in the history of the cluster.")
DETACH = click.option("--detach", is_flag=True, help="Return as soon as the change has begun.")


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """A cluster at an `address` or, without a URL, the one called `name` or the only one on this machine. `reason` is
    why it is to be changed."""

    name: str | None
    address: AdminAddress
    reason: str = ""

    @property
    def is_elsewhere(self) -> bool:
        return self.address.url is not None

    def admin_api(self, among_several: str | None = None) -> AdminPort:
        """The cluster's admin API; without a name, if several run here, that of the one called `among_several`. Raises
        CommandError."""
        if self.is_elsewhere:
            return self.address.client(self.reason)
        state = cluster_here(self.name, "--url and --token", among_several)
        return LocalAdmin(state, self.address.known_token, self.reason)


def takes_name(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the cluster's name as an argument. The command has the option `NAME` as well, and gets what
    either of them says as `name`."""

    @click.argument("named", metavar="[NAME]", required=False)
    @functools.wraps(command)
    def with_name(*, named: str | None, name: str | None, **others: Any) -> None:
        if named is not None and name is not None:
            raise click.UsageError("give NAME or --name, not both")
        command(name=name if named is None else named, **others)

    return with_name


def of_a_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options which choose a cluster. The command gets them as `cluster`."""

    @NAME
    @takes_address
    @functools.wraps(command)
    def with_cluster(*, name: str | None, address: AdminAddress, **others: Any) -> None:
        command(cluster=ClusterChoice(name, address), **others)

    return with_cluster


def changes_a_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of `of_a_cluster`, and the reason for the change."""

    @NAME
    @takes_address
    @REASON
    @functools.wraps(command)
    def with_cluster(*, name: str | None, address: AdminAddress, reason: str, **others: Any) -> None:
        command(cluster=ClusterChoice(name, address, reason), **others)

    return with_cluster
