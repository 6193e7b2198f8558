"""The command `slipstream restart`: the driver of a running cluster, and with it all processes but the guardian, are
started again from the environment as it is now. So Slipstream is upgraded without losing a request: the guardian keeps
the router's clients meanwhile."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import click
import psutil

from slipstream.cluster.admin_api.client.cluster_choice import NAME, takes_name
from slipstream.cluster.fleet.update_plan import ENDED
from slipstream.cluster.processes import process_tree
from slipstream.cluster.processes.guardian_link import VARIABLE
from slipstream.cluster.state import clusters_here, host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error

LOOK_EVERY_S = 0.2
TRY_TIMEOUT_S = 120.0
VERSION = "import slipstream; print(slipstream.__version__)"


@click.command("restart")
@takes_name
@NAME
def restart_command(name: str | None) -> None:
    """Start the cluster called NAME again, from the environment as it is now, without losing a request.

    This is how Slipstream is upgraded: install the new version where the running one is, then call this. Clients of a
    router without TLS wait until the cluster serves again, and then get the rest of their answers.
    """
    with exit_on_command_error():
        state = _chosen(name)
        environment = DriverEnvironment.of(state)
        version = environment.version()
        environment.check(state.config)
        change = f"Slipstream {state.slipstream or '0.1'} -> {version}"
        with_tls = state.url.startswith("https:")
        waiting = "requests that run may finish first, because their connections end" if with_tls else "clients wait"
        click.echo(f"restarting {state.name}: {change}; {waiting}")
        _end_driver(state)
        after = _next(state)
        click.echo(f"{after.name} serves again at {after.url} (Slipstream {after.slipstream or version})")


def _chosen(name: str | None) -> ClusterState:
    """The cluster, which serves and is not being updated. Raises CommandError."""
    states = [state for state in clusters_here.read_all(host_folders.run_folder()) if name in (None, state.name)]
    if not states:
        raise CommandError(f"no cluster named {name} runs here" if name else "no cluster runs here")
    if len(states) > 1:
        console.error(f"several clusters run here, say which one: {', '.join(state.name for state in states)}")
        sys.exit(2)
    (state,) = states
    if not state.is_up:
        raise CommandError(f"{state.name} is {state.phase if state.has_driver else 'starting again'}; nothing was done")
    for model in state.models:
        if model.update_phase is not None and model.update_phase not in ENDED:
            raise CommandError(f"{state.name} is being updated ({model.update}), which a restart would cut short")
    return state


@dataclass(frozen=True, slots=True)
class DriverEnvironment:
    """How the guardian starts a driver: the interpreter with its options (see `module_command`), its folder and its
    environment."""

    python: tuple[str, ...]
    folder: str
    variables: dict[str, str]

    @classmethod
    def of(cls, state: ClusterState) -> DriverEnvironment:
        """Those of the present driver. Raises CommandError."""
        try:
            driver = psutil.Process(state.driver)
            variables = {key: value for key, value in driver.environ().items() if key != VARIABLE}
            python = tuple(itertools.takewhile(lambda argument: argument != "-m", driver.cmdline()))
            return cls(python, driver.cwd(), variables)
        except psutil.AccessDenied:
            raise CommandError(f"{state.name} (pid {state.driver}) belongs to another user") from None
        except psutil.Error:
            raise CommandError(f"the driver of {state.name} has just ended; nothing was done") from None

    def version(self) -> str:
        """The version of Slipstream that the next driver would be. Raises CommandError."""
        return self._run("-c", VERSION)

    def check(self, config: str) -> None:
        """Whether that version accepts the configuration file. What the running cluster takes of this machine, such as
        its ports, does not count. Raises CommandError."""
        self._run("-m", "slipstream.cluster.cli", "check", "--elsewhere", config)

    def _run(self, *arguments: str) -> str:
        command = [*self.python, *arguments]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=TRY_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandError(f"the next driver would not start: {error}; nothing was done") from None
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise CommandError(f"the next driver would not start: {lines[-1].strip()[:300]}; nothing was done")
        return done.stdout.strip()


def _end_driver(state: ClusterState) -> None:
    """Sends SIGTERM to the driver alone: its guardian, which got no signal, starts the next one."""
    if process_tree.is_running(state.driver, state.driver_started):
        os.kill(state.driver, signal.SIGTERM)


def _next(before: ClusterState) -> ClusterState:
    """Waits until another driver serves. Raises CommandError if the cluster has ended."""
    path = host_folders.run_folder() / f"{before.name}.json"
    while True:
        state = state_file.read(path)
        is_ours = state is not None and (state.pid, state.started) == (before.pid, before.started)
        if state is None or not is_ours or state.is_stale:
            if not process_tree.is_running(before.pid, before.started):
                where = f"; the logs are in {before.log_dir}" if before.log_dir else ""
                raise CommandError(f"{before.name} has ended, because no driver could be started{where}")
        elif state.is_up and (state.driver, state.driver_started) != (before.driver, before.driver_started):
            return state
        time.sleep(LOOK_EVERY_S)
