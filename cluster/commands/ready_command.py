"""The command `slipstream ready`: the health check of containers, and of scripts that wait for a cluster."""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit

import click

from slipstream.cluster.admin_api.client.cluster_choice import NAME, takes_name
from slipstream.cluster.state import clusters_here, host_folders
from slipstream.cluster.state.router_probe import why_not_ready
from slipstream.cluster.terminal import console


@click.command("ready")
@takes_name
@NAME
@click.option(
    "--timeout", "timeout_s", metavar="SECONDS", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True
)
def ready_command(name: str | None, timeout_s: float) -> None:
    """Say whether all clusters whose drivers run here, or the one called NAME, take requests (exit code 0). If one does
    not, or there is none, the exit code is 1."""
    states = [state for state in clusters_here.read_all(host_folders.run_folder()) if name in (None, state.name)]
    if not states:
        console.error(f"no cluster named {name} runs here" if name else "no cluster runs here")
        sys.exit(1)
    reasons = {state.name: _reason(state.url, timeout_s) if state.url else f"it is {state.phase}" for state in states}
    for cluster, reason in reasons.items():
        if reason is not None:
            console.error(f"{cluster} is not ready: {reason}")
    sys.exit(1 if any(reasons.values()) else 0)


def _reason(url: str, timeout_s: float) -> str | None:
    """Why the router at this URL is not ready; None: it is."""
    parts = urlsplit(url)
    probe = why_not_ready(parts.hostname or "", parts.port or 0, parts.scheme == "https")
    try:
        return asyncio.run(asyncio.wait_for(probe, timeout_s))
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error)
