"""The command `slipstream status`: shows the state of clusters, once or repeatedly."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_address import AdminAddress, takes_address
from slipstream.cluster.admin_api.client.admin_client import client_of
from slipstream.cluster.admin_api.client.admin_port import AdminPort
from slipstream.cluster.admin_api.client.cluster_choice import NAME, takes_name
from slipstream.cluster.state import clusters_here, host_folders
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from slipstream.cluster.state.cluster_status import describe, router_status
from slipstream.cluster.state.model_state import ModelState
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error

CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class StatusView:
    """What is known about a cluster at one moment."""

    state: ClusterState
    router: dict[str, Any] | None
    signals: dict[str, Any] | None
    signals_by_model: dict[str, dict[str, Any] | None] | None  # where there are several models

    def as_dict(self) -> dict[str, Any]:
        shown = {**self.state.public(), "router": self.router, "signals": self.signals}
        return shown if self.signals_by_model is None else {**shown, "signals_by_model": self.signals_by_model}

    @property
    def lines(self) -> Iterator[str]:
        return describe(self.state, self.router, self.signals, self.signals_by_model)


@click.command("status")
@takes_name
@NAME
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True)
@takes_address
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs; with --watch, one line each time.")
def status_command(name: str | None, watch: bool, every: float, address: AdminAddress, as_json: bool) -> None:
    """Show the clusters whose drivers run on this machine, the one called NAME, or one on another machine."""
    with exit_on_command_error(), suppress(KeyboardInterrupt):
        for ended in clusters_here.sweep(host_folders.run_folder()) if address.url is None else ():
            console.warning(f"{ended.name} has ended: {ended.last_words}")
        elsewhere = address.client() if address.url is not None else None
        while True:
            looks = views(name, elsewhere, address.url)
            if as_json:
                click.echo(json.dumps([look.as_dict() for look in looks], indent=None if watch else 1))
            else:
                text = "\n\n".join("\n".join(look.lines) for look in looks)
                nothing = f"no cluster named {name} runs here" if name else "no cluster runs here"
                click.echo((CLEAR if watch and sys.stdout.isatty() else "") + (text or nothing))
            if not watch:
                sys.exit(1 if name is not None and not looks else 0)
            time.sleep(every)


def views(name: str | None, elsewhere: AdminPort | None, url: str | None) -> list[StatusView]:
    """The cluster `elsewhere`, at `url`, or those of this machine. Raises CommandError."""
    return [_elsewhere(elsewhere, url)] if elsewhere is not None and url is not None else [*_here(name)]


def _here(name: str | None) -> Iterator[StatusView]:
    """Clusters on this machine, by their state files, together with what their drivers tell if they already serve."""
    for state in clusters_here.read_all(host_folders.run_folder()):
        if name not in (None, state.name):
            continue
        if state.driver and not state.has_driver:
            state.phase, state.members = "down", []
        reply: dict[str, Any] = {}
        if state.operator_url and state.phase == "ready":
            try:
                reply = client_of(state).get("/v1/status")
            except CommandError:
                reply = {}
        router = reply.get("router") or router_status(state.ask_url)
        yield StatusView(state, router, reply.get("signals"), reply.get("signals_by_model"))


def _elsewhere(admin: AdminPort, url: str) -> StatusView:
    """A cluster on another machine. Raises CommandError."""
    reply = admin.get("/v1/status")
    known = {field.name for field in fields(ClusterState)}
    try:
        state = ClusterState(**{key: value for key, value in reply.items() if key in known})
        state.members = [MemberStatus(**member) for member in reply["members"]]
        first = 1 if state.model else 0  # the first model is the state itself
        state.further = [_model_state(model) for model in reply.get("models", ())[first:]]
    except (TypeError, KeyError) as error:
        raise CommandError(f"{url} is of another version of Slipstream: {error}") from error
    return StatusView(state, reply.get("router"), reply.get("signals"), reply.get("signals_by_model"))


def _model_state(shown: dict[str, Any]) -> ModelState:
    """A model but the first, as a cluster elsewhere shows it."""
    known = {field.name for field in fields(ModelState)}
    state = ModelState(shown["name"], **{key: value for key, value in shown.items() if key in known})
    state.is_leaving = shown["state"] == "leaving"
    return state
