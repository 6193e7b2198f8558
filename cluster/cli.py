"""The command `slipstream`, and where its subcommands are."""

from __future__ import annotations

import pkgutil
import sys
from typing import Any

import click

from slipstream import __version__
from slipstream.cluster.state.host_folders import NoHome
from slipstream.cluster.terminal import console

COMMANDS = {
    "batch": "slipstream.cluster.tools.batch.batch_command:batch_command",
    "bench": "slipstream.cluster.tools.bench.bench_command:bench_command",
    "check": "slipstream.cluster.commands.checking.check_command:check_command",
    "conformance": "slipstream.cluster.tools.conformance.conformance_command:conformance_command",
    "dashboards": "slipstream.cluster.commands.dashboards_command:dashboards_command",
    "down": "slipstream.cluster.commands.down_command:down_command",
    "drain": "slipstream.cluster.commands.fleet_commands:drain_command",
    "explain": "slipstream.cluster.commands.explain_command:explain_command",
    "fetch": "slipstream.cluster.commands.fetch_command:fetch_command",
    "history": "slipstream.cluster.commands.history_command:history_command",
    "keys": "slipstream.router.access.keys_command:keys_command",
    "mirror": "slipstream.cluster.commands.update_commands:mirror_command",
    "mock-worker": "slipstream.workers.mock.main:mock_worker_command",
    "models": "slipstream.cluster.commands.models_command:models_command",
    "move": "slipstream.cluster.commands.fleet_commands:move_command",
    "plan": "slipstream.cluster.tools.plan.plan_command:plan_command",
    "planner": "slipstream.cluster.commands.planner_command:planner_command",
    "promote": "slipstream.cluster.commands.update_commands:promote_command",
    "ready": "slipstream.cluster.commands.ready_command:ready_command",
    "restart": "slipstream.cluster.commands.restart_command:restart_command",
    "role": "slipstream.cluster.commands.fleet_commands:role_command",
    "rollback": "slipstream.cluster.commands.update_commands:rollback_command",
    "scale": "slipstream.cluster.commands.fleet_commands:scale_command",
    "serve": "slipstream.cluster.serve:serve_command",
    "sim": "slipstream.cluster.tools.sim.sim_command:sim_command",
    "sim-batching": "slipstream.cluster.tools.sim.batching.batching_command:sim_batching_command",
    "split": "slipstream.cluster.commands.update_commands:split_command",
    "status": "slipstream.cluster.commands.status_command:status_command",
    "tokens": "slipstream.cluster.commands.tokens_command:tokens_command",
    "top": "slipstream.cluster.tools.top.top_command:top_command",
    "update": "slipstream.cluster.commands.update_commands:update_command",
}


class Commands(click.Group):
    """Imports a subcommand only when it is called: importing all of them takes half a second, by which `serve` would
    start Ray later. If something around a command is broken, it is reported in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = pkgutil.resolve_name(COMMANDS[cmd_name]) if cmd_name in COMMANDS else None
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


if __name__ == "__main__":
    main()
