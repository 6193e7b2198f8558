"""Which cluster a command of operators is about: one that runs on this machine, or one elsewhere."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from slipstream.cluster.cannot_tell import CannotTell
from slipstream.cluster.operator.client import TOKEN_VARIABLE, OperatorClient, client_of
from slipstream.cluster.run_state import cluster_here

NAME = click.option("--name", metavar="CLUSTER", help="Which of the clusters that run on this machine.")
URL = click.option("--url", help="The admin API of a cluster elsewhere.")
TOKEN = click.option("--token", metavar="TOKEN", help=f"The operator's, for --url [env: {TOKEN_VARIABLE}].")
JSON = click.option("--json", "as_json", is_flag=True, help="For programs: the last answer, whole.")
DETACH = click.option("--detach", is_flag=True, help="Return when the change has been begun.")


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """By `url` and `token` if a URL is given, else the one called `name`, or the only one that runs here."""

    name: str | None
    url: str | None
    token: str | None

    def operator(self) -> OperatorClient:
        """Raises CannotTell."""
        token = self.token or os.environ.get(TOKEN_VARIABLE)
        if self.url is None:
            return client_of(cluster_here(self.name, "--url and --token"), token)
        if not token:
            raise CannotTell(f"with --url the operator's token is needed: --token, or {TOKEN_VARIABLE}")
        return OperatorClient(self.url.rstrip("/"), token)


def of_a_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say which cluster; the command gets them as `cluster`."""

    @NAME
    @URL
    @TOKEN
    @functools.wraps(command)
    def with_cluster(*, name: str | None, url: str | None, token: str | None, **others: Any) -> None:
        command(cluster=ClusterChoice(name, url, token), **others)

    return with_cluster
