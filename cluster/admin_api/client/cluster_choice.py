"""The options of operators' commands that choose a cluster: one on this machine, or one elsewhere."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_client import TOKEN_VARIABLE, AdminClient
from slipstream.cluster.admin_api.client.admin_port import AdminPort
from slipstream.cluster.admin_api.client.local_admin import LocalAdmin
from slipstream.cluster.state.run_state import cluster_here
from slipstream.cluster.terminal.command_error import CommandError

NAME = click.option("--name", metavar="CLUSTER", help="The cluster, if several run on this machine.")
URL = click.option("--url", help="The admin API of a cluster on another machine.")
TOKEN = click.option("--token", metavar="TOKEN", help=f"The admin API's token, for --url [env: {TOKEN_VARIABLE}].")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the last answer as JSON, for programs.")
MODEL = click.option("--model", metavar="MODEL", help="The model, where the cluster has several.")
REASON = click.option("--reason", metavar="TEXT", default="", help="Why; it stands in the history of the cluster.")
DETACH = click.option("--detach", is_flag=True, help="Return as soon as the change has begun.")


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """A cluster given by `url` and `token`; or, without a URL, the one called `name` or the only one on this
    machine. `reason` is why it is to be changed."""

    name: str | None
    url: str | None
    token: str | None
    reason: str = ""

    def admin_api(self, among_several: str | None = None) -> AdminPort:
        """The cluster's admin API; without a name, if several run here, that of the one called `among_several`. Raises
        CommandError."""
        token = self.token or os.environ.get(TOKEN_VARIABLE)
        if self.url is None:
            return LocalAdmin(cluster_here(self.name, "--url and --token", among_several), token, self.reason)
        if not token:
            raise CommandError(f"with --url the admin API's token is needed: --token, or {TOKEN_VARIABLE}")
        return AdminClient(self.url.rstrip("/"), token, self.reason)


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
    @URL
    @TOKEN
    @functools.wraps(command)
    def with_cluster(*, name: str | None, url: str | None, token: str | None, **others: Any) -> None:
        command(cluster=ClusterChoice(name, url, token), **others)

    return with_cluster


def changes_a_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of `of_a_cluster`, and the reason for the change."""

    @NAME
    @URL
    @TOKEN
    @REASON
    @functools.wraps(command)
    def with_cluster(*, name: str | None, url: str | None, token: str | None, reason: str, **others: Any) -> None:
        command(cluster=ClusterChoice(name, url, token, reason), **others)

    return with_cluster
