"""The command `slipstream history`: every change of a cluster, with who made it and why."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_port import AdminPort
from slipstream.cluster.admin_api.client.cluster_choice import ClusterChoice, of_a_cluster, takes_name
from slipstream.cluster.history.change_log import ChangeFilter, ChangeLog, history_path
from slipstream.cluster.state import clusters_here, host_folders
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error

ASK_EVERY_S = 1.0
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
FIELDS = ("who", "what", "model", "subject", "old", "new", "why")


@click.command("history")
@takes_name
@click.option("--model", help="Only changes of this model, and of all models.")
@click.option("--since", metavar="TIME", help="As 30m, 12h or 7d ago, or a date and time such as 2027-01-31T12:00.")
@click.option("--last", metavar="N", type=click.IntRange(1, 10_000), default=100, show_default=True, help="So many.")
@click.option("--follow", is_flag=True, help="Show further changes as they are made, until Ctrl-C.")
@of_a_cluster
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, for programs.")
def history_command(
    cluster: ClusterChoice, model: str | None, since: str | None, last: int, follow: bool, as_json: bool
) -> None:
    """List every change of a cluster: who made it, when, old and new state, and why; the oldest first.

    The history of a cluster that has ended is shown if NAME says which one.
    """
    since_s = 0.0 if since is None else moment_of(since, time.time())
    with exit_on_command_error(), suppress(KeyboardInterrupt):
        if not cluster.is_elsewhere and cluster.name is not None and not _runs(cluster.name):
            shown = [asdict(one) for one in _ended(cluster.name).latest(last, ChangeFilter(0, since_s, model))]
            show(shown, as_json)
            return
        admin = cluster.admin_api()
        changes = _ask(admin, last, 0, since_s, model)
        show(changes, as_json)
        while follow:
            sys.stdout.flush()
            time.sleep(ASK_EVERY_S)
            after = changes[-1]["number"] if changes else 0
            further = _ask(admin, 10_000, after, since_s, model)
            show(further, as_json, has_header=False)
            changes = further or changes


def moment_of(text: str, now_s: float) -> float:
    """Seconds since the epoch. Raises click.UsageError."""
    ago = AGO.fullmatch(text)
    if ago is not None:
        return max(0.0, now_s - float(ago[1]) * UNITS_S[ago[2]])
    try:
        return datetime.fromisoformat(text).timestamp()  # local time, unless it names an offset
    except ValueError:
        raise click.UsageError(
            f"--since: expected a time such as 30m, 12h, 7d or 2027-01-31T12:00, got {text!r}"
        ) from None


def _runs(name: str) -> bool:
    return any(state.name == name for state in clusters_here.read_all(host_folders.run_folder()))


def _ended(name: str) -> ChangeLog:
    path = history_path(name)
    if not path.exists():
        raise CommandError(f"no cluster named {name} runs here, and there is no history of one in {path.parent}")
    return ChangeLog(path)


def _ask(admin: AdminPort, last: int, after: int, since_s: float, model: str | None) -> list[dict[str, Any]]:
    query = {"last": last, "after": after, "since": since_s} | ({"model": model} if model is not None else {})
    changes: list[dict[str, Any]] = admin.get(f"/v1/history?{urllib.parse.urlencode(query)}")["changes"]
    return changes


def show(changes: Sequence[dict[str, Any]], as_json: bool, *, has_header: bool = True) -> None:
    for line in map(json.dumps, changes) if as_json else lines(changes, has_header):
        click.echo(line)


def _cell(text: str) -> str:
    """In one line, and without what a terminal would obey: reasons are written by all holders of tokens."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())) or "-"


def lines(changes: Sequence[dict[str, Any]], has_header: bool) -> Iterator[str]:
    """A table for people. Its columns are as wide as what is in them; the last one, why, may be long."""
    rows = [("TIME", *(name.upper() for name in FIELDS))] if has_header else []
    rows += [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change["at_s"])),
            *(_cell(str(change[name])) for name in FIELDS),
        )
        for change in changes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
