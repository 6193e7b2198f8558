"""The commands `slipstream models ...`: list the models of a running cluster; add, remove, update or rename one."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_port import CallOptions
from slipstream.cluster.admin_api.client.cluster_choice import JSON, ClusterChoice, changes_a_cluster, of_a_cluster
from slipstream.cluster.commands.update_commands import update_command
from slipstream.cluster.terminal.command_error import exit_on_command_error
from slipstream.cluster.terminal.table import aligned

PATH = "/v1/models"
STARTS = CallOptions(timeout_s=3600.0)  # in which files are read or downloaded, and workers start or drain


@click.group("models")
def models_command() -> None:
    """List, add, remove, update or rename the models of a running cluster."""


@models_command.command("list")
@of_a_cluster
@JSON
def list_command(cluster: ClusterChoice, as_json: bool) -> None:
    """Show the models and how they are."""
    with exit_on_command_error():
        _show(cluster.admin_api().get(PATH), as_json)


@models_command.command("add")
@click.argument("file", type=click.Path(path_type=Path))
@changes_a_cluster
@JSON
def add_command(cluster: ClusterChoice, file: Path, as_json: bool) -> None:
    """Add the models in FILE: one entry of `models`, or a list of them under `models`.

    Returns when they serve. If one of them cannot be served, none is added. With --url, FILE is a file on that machine.
    """
    with exit_on_command_error():
        admin = cluster.admin_api()
        question = {"config": str(file if cluster.is_elsewhere else file.resolve())}
        answer = admin.post(PATH, question, STARTS)
        _done(answer, f"added {', '.join(answer['added'])}", as_json)


@models_command.command("remove")
@click.argument("model")
@changes_a_cluster
@JSON
def remove_command(cluster: ClusterChoice, model: str, as_json: bool) -> None:
    """Remove MODEL: it takes no new requests, running ones finish within drain_timeout_s, and its workers end."""
    with exit_on_command_error():
        answer = cluster.admin_api().post(_path(model, "remove"), {}, STARTS)
        _done(answer, f"removed {model}", as_json)


def _update(**options: Any) -> None:
    assert update_command.callback is not None
    update_command.callback(**options)


models_command.add_command(
    click.Command(
        "update",
        callback=_update,
        params=[
            click.Argument(["model"]),
            click.Argument(["config"], metavar="FILE", type=click.Path(path_type=Path)),
            *(one for one in update_command.params if one.name not in ("config", "model")),
        ],
        help="Update MODEL to what FILE says of it, as `slipstream update FILE --model MODEL` does.",
    )
)


@models_command.command("alias")
@click.argument("model")
@click.argument("aliases", metavar="ALIAS...", nargs=-1, required=True)
@click.option("--remove", "removes", is_flag=True, help="Take these names away from it.")
@changes_a_cluster
@JSON
def alias_command(cluster: ClusterChoice, model: str, aliases: tuple[str, ...], removes: bool, as_json: bool) -> None:
    """Let clients ask for MODEL by further names."""
    with exit_on_command_error():
        key = "remove" if removes else "add"
        answer = cluster.admin_api().post(_path(model, "aliases"), {key: list(aliases)})
        of_model = next(one for one in answer["models"] if one["name"] == model)
        _done(answer, f"{model}: {', '.join(of_model['aliases']) or 'no aliases'}", as_json)


def _path(model: str, change: str) -> str:
    return f"{PATH}/{urllib.parse.quote(model, safe='', errors='surrogateescape')}/{change}"


def _done(answer: dict[str, Any], line: str, as_json: bool) -> None:
    click.echo(json.dumps(answer, indent=1) if as_json else line)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer, indent=1))
        return
    rows = [("MODEL", "STATE", "WORKERS", "VERSION", "ALIASES", "PATH", "")]
    rows += [
        (
            one["name"],
            one["state"],
            f"{one['num_ready']}/{one['num_prefill'] + one['num_decode']}",
            one["version"] or "-",
            ", ".join(one["aliases"]) or "-",
            one["path"],
            one["reason"],
        )
        for one in answer["models"]
    ]
    for line in aligned(rows):
        click.echo(line)
