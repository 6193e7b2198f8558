"""The command `slipstream down`: ends a cluster as Ctrl-C does, and waits until it has ended."""

from __future__ import annotations

import math
import signal
import sys
import time

import click
import psutil

from slipstream.cluster.admin_api.client.cluster_choice import NAME, takes_name
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import clusters_here, host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterPhase, ClusterState
from slipstream.cluster.state.cluster_status import duration, router_status
from slipstream.cluster.terminal import console

PATIENCE_S = 20.0  # with --now
PROGRESS_EVERY_S = 5.0
ENDING: tuple[ClusterPhase, ...] = ("draining", "stopping")


@click.command("down")
@takes_name
@NAME
@click.option("--now", is_flag=True, help="Do not wait for running requests.")
@click.option(
    "--grace", is_flag=True, help="Serve for drain_grace_s more, so that load balancers notice, as SIGTERM does."
)
def down_command(name: str | None, now: bool, grace: bool) -> None:
    """Drain and stop the cluster called NAME (not needed if there is only one)."""
    if now and grace:
        raise click.UsageError("--now and --grace contradict each other")
    states = clusters_here.read_all(host_folders.run_folder())
    for ended in clusters_here.sweep(host_folders.run_folder()):
        console.warning(f"{ended.name} has ended: {ended.last_words}")
    if name is not None:
        states = [state for state in states if state.name == name]
    if not states:
        console.error(f"no cluster named {name} runs here" if name else "no cluster runs here")
        sys.exit(1)
    if len(states) > 1:
        console.error(f"several clusters run here, say which one: {', '.join(state.name for state in states)}")
        sys.exit(2)
    sys.exit(_stop(states[0], now, grace))


def _stop(state: ClusterState, now: bool, grace: bool) -> int:
    """Asks the guardian to end, as Ctrl-C does, or with `grace` as SIGTERM, and waits for it. Returns the exit code."""
    try:
        guardian = psutil.Process(state.pid)
        click.echo(f"stopping {state.name} (pid {state.pid}){_what_it_waits_for(state, now)}")
        guardian.send_signal(signal.SIGTERM if grace else signal.SIGINT)  # psutil compares start times first
        if now:
            guardian.send_signal(signal.SIGTERM)  # a second SIGINT could be merged with the first
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied:
        console.error(f"{state.name} (pid {state.pid}) belongs to another user")
        return 1
    # How long a drain may take is configured, and the driver sees to it.
    if not _wait_until_gone(state, PATIENCE_S if now else math.inf):
        console.error(f"{state.name} (pid {state.pid}) has not ended within {PATIENCE_S:g} s")
        return 1
    click.echo(f"{state.name} is down")
    return 0


def _what_it_waits_for(state: ClusterState, now: bool) -> str:
    if not (state.is_up or state.phase in ENDING):
        return ", which is not up; requests that wait for it end"
    if now:
        return ", without waiting for running requests"
    timeout_s = state.served.get("drain_timeout_s")
    limit = f", for {timeout_s:g} s at most" if isinstance(timeout_s, int | float) else ""
    return f"; running requests may finish{limit}"


def _wait_until_gone(state: ClusterState, patience_s: float) -> bool:
    """Waits for the end of the guardian, and shows at intervals what is still going on. Returns whether it has ended in
    time."""
    begin_s = time.monotonic()
    while (left_s := begin_s + patience_s - time.monotonic()) > 0:
        if process_tree.wait_until_gone(state.pid, state.started, min(PROGRESS_EVERY_S, left_s)):
            return True
        console.error(f"{state.name}: {_progress(state)} after {duration(time.monotonic() - begin_s)}")
    return False


def _progress(before: ClusterState) -> str:
    """What a cluster that is ending is doing now."""
    state = state_file.read(host_folders.run_folder() / f"{before.name}.json") or before
    if state.phase != "draining":
        return "its processes are ending" if state.phase == "stopping" else state.phase
    load = router_status(state.ask_url)
    return "draining" if load is None else f"{load['num_running']} requests running, {load['num_waiting']} waiting"
