"""The command `slipstream`: its subcommands `check` and `down`, and where all other subcommands are."""

from __future__ import annotations

import math
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any

import click
import psutil

from slipstream import __version__
from slipstream.cluster.config.loading.config_warnings import Machine, warnings_about
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.processes import process_tree
from slipstream.cluster.sizing.config_choice import checked_config
from slipstream.cluster.state import run_state
from slipstream.cluster.state.run_state import ClusterPhase, ClusterState, NoHome
from slipstream.cluster.terminal import console

DOWN_PATIENCE_S = 20.0
ENDING: tuple[ClusterPhase, ...] = ("draining", "stopping")
COMMANDS = {
    "bench": "slipstream.cluster.tools.bench.bench_command:bench_command",
    "drain": "slipstream.cluster.commands.fleet_commands:drain_command",
    "explain": "slipstream.cluster.commands.explain_command:explain_command",
    "keys": "slipstream.router.access.keys_command:keys_command",
    "mock-worker": "slipstream.workers.mock.main:mock_worker_command",
    "plan": "slipstream.cluster.tools.plan.plan_command:plan_command",
    "planner": "slipstream.cluster.commands.planner_command:planner_command",
    "restart": "slipstream.cluster.commands.restart_command:restart_command",
    "role": "slipstream.cluster.commands.fleet_commands:role_command",
    "rollback": "slipstream.cluster.commands.update_commands:rollback_command",
    "scale": "slipstream.cluster.commands.fleet_commands:scale_command",
    "serve": "slipstream.cluster.serve:serve_command",
    "sim": "slipstream.cluster.tools.sim.sim_command:sim_command",
    "split": "slipstream.cluster.commands.update_commands:split_command",
    "status": "slipstream.cluster.commands.status_command:status_command",
    "update": "slipstream.cluster.commands.update_commands:update_command",
}


class Commands(click.Group):
    """Imports a subcommand only when it is called: importing all of them takes half a second, by which `serve` would
    start Ray later. If something around a command is broken, it is reported in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = pkgutil.resolve_name(COMMANDS[cmd_name])
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoHome as error:
            console.error(str(error))
            sys.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slipstream")
def main() -> None:
    """Slipstream: a disaggregated prefill/decode serving cluster for large language models."""


@main.command("check")
@click.argument("configs", metavar="CONFIG|MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--elsewhere", is_flag=True, help="They are for other machines: leave ports, addresses and sizes aside.")
def check_command(configs: tuple[Path, ...], elsewhere: bool) -> None:
    """Check configurations, or what would be chosen for models, without starting anything: all that `serve`
    would refuse on this machine."""
    from slipstream.cluster.commands.start_check import refusals_here  # imported here: other commands need none of it
    from slipstream.cluster.repository.model_dir import text_problem

    failed = False
    for path in configs:
        try:
            config = checked_config(path)
        except ConfigError as error:
            failed = True
            for problem in error.problems:
                console.error(problem)
            continue
        machine = Machine.this()
        refusals = [] if elsewhere else list(refusals_here(config, machine))
        if (of_text := text_problem(config)) is not None:
            refusals.append(of_text)
        for refusal in refusals:
            failed = True
            console.error(f"{path}: {refusal}")
        if not refusals:
            pools = ", ".join(f"{pool.replicas} x {role} (tp {pool.tp})" for role, pool in config.pools())
            for warning in warnings_about(config, machine):
                console.warning(f"{path}: {warning}")
            click.echo(f"{path}: ok: {config.model.name} with {pools}, HTTP port {config.router.http.port}")
    sys.exit(2 if failed else 0)


@main.command("down")
@click.argument("name", required=False)
@click.option("--now", is_flag=True, help="Do not wait for running requests.")
@click.option(
    "--grace", is_flag=True, help="Serve for drain_grace_s more, so that load balancers notice, as SIGTERM does."
)
def down_command(name: str | None, now: bool, grace: bool) -> None:
    """Drain and stop the cluster called NAME (not needed if there is only one)."""
    if now and grace:
        raise click.UsageError("--now and --grace contradict each other")
    states = run_state.read_all(run_state.run_folder())
    for ended in run_state.sweep(run_state.run_folder()):
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
        waiting = "" if state.is_up or state.phase in ENDING else ", which is not up; requests that wait for it end"
        click.echo(f"stopping {state.name} (pid {state.pid}){waiting}")
        guardian.send_signal(signal.SIGTERM if grace else signal.SIGINT)  # psutil compares start times first
        if now:
            guardian.send_signal(signal.SIGTERM)  # a second SIGINT could be merged with the first
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied:
        console.error(f"{state.name} (pid {state.pid}) belongs to another user")
        return 1
    # How long a drain may take is configured, and the driver sees to it.
    if not process_tree.wait_until_gone(state.pid, state.started, DOWN_PATIENCE_S if now else math.inf):
        console.error(f"{state.name} (pid {state.pid}) has not ended within {DOWN_PATIENCE_S:g} s")
        return 1
    click.echo(f"{state.name} is down")
    return 0


if __name__ == "__main__":
    main()
