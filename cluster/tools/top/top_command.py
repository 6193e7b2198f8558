"""The command `slipstream top`: the live picture of clusters in a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import Any, get_args

import click

from slipstream.cluster.admin_api.client.admin_address import AdminAddress, takes_address
from slipstream.cluster.admin_api.client.admin_client import client_of
from slipstream.cluster.admin_api.client.admin_port import AdminPort
from slipstream.cluster.admin_api.client.cluster_choice import NAME, takes_name
from slipstream.cluster.commands.status_command import StatusView, views
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error
from slipstream.cluster.tools.top.top_frame import Order, frame

CLEAR = "\x1b[H\x1b[J"
PLAIN_COLUMNS = 160
NUM_DECISIONS = 3


@click.command("top")
@takes_name
@NAME
@click.option("--once", is_flag=True, help="Print one frame. This is the default where the output is no terminal.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True)
@click.option("--sort", "order", type=click.Choice(get_args(Order)), default="name", show_default=True)
@click.option("--model", default="", help="Show only the workers of this model.")
@takes_address
def top_command(name: str | None, once: bool, every: float, order: Order, model: str, address: AdminAddress) -> None:
    """Show the load, the queue and the workers of clusters, again and again until Ctrl-C."""
    is_live = sys.stdout.isatty() and not once
    with exit_on_command_error(), suppress(KeyboardInterrupt):
        elsewhere = address.client() if address.url is not None else None
        while True:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_COLUMNS
            try:
                shown = [as_shown(view, elsewhere) for view in views(name, elsewhere, address.url)]
                frames = [frame(one, columns=columns, order=order, model=model) for one in shown]
                text = "\n\n".join("\n".join(lines) for lines in frames)
            except CommandError as error:  # the driver or the router may be starting again
                if not is_live:
                    raise
                shown, text = [], str(error)
            click.echo((CLEAR if is_live else "") + (text or "no such cluster runs here"))
            if not is_live:
                sys.exit(0 if shown else 1)
            time.sleep(every)


def as_shown(view: StatusView, elsewhere: AdminPort | None) -> dict[str, Any]:
    """The status with the planner's latest `decisions`. They are missing while the driver does not answer."""
    shown = view.as_dict()
    state = view.state
    if elsewhere is None and (not state.operator_url or state.phase != "ready"):
        return shown
    with suppress(CommandError):
        admin = elsewhere or client_of(state)
        shown["decisions"] = admin.get(f"/v1/planner/decisions?last={NUM_DECISIONS}")["decisions"]
    return shown
