"""Serves one configuration until told to stop: `python -m slipstream.cluster.serve CONFIG`.

Runs wherever a driver of Ray runs: from a terminal, with a Ray of its own, or as a job of an existing cluster
(`ray job submit --working-dir . -- python -m slipstream.cluster.serve CONFIG`).

Exit codes: 0 stopped normally; 1 did not come up, or broke; 2 the configuration, a port or the name cannot be used;
130 interrupted before it was up.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TextIO

import click

from slipstream.cluster import console, own_ray, run_state
from slipstream.cluster.config import ClusterConfig, RayConfig
from slipstream.cluster.console import Console
from slipstream.cluster.doubts import Machine, doubts_about
from slipstream.cluster.listening import listeners, why_not_there
from slipstream.cluster.overrides import Overrides
from slipstream.cluster.own_ray import OwnRay
from slipstream.cluster.process_log import redirect_output
from slipstream.cluster.settings_file import ConfigError

INTERRUPTED = 130


class CannotListen(Exception):  # noqa: N818 - reads as the sentence it carries
    """A port is in use, or an address does not belong to this machine."""


class Interrupted(BaseException):
    """A signal came before the cluster was up. It is not an Exception, so that no handler in between catches it."""


def serve(config_path: Path, *, name: str | None, port: int | None, timings: bool) -> int:
    """Serves a configuration to the end. Returns the exit code; everything else is reported at the terminal."""
    overrides = Overrides(name, port)
    try:
        config = overrides.load(config_path)
    except ConfigError as error:
        for problem in error.problems:
            console.error(problem)
        return 2
    for doubt in doubts_about(config, Machine.this()):
        console.warning(f"{config_path}: {doubt}")
    address = ray_address(config.ray)
    try:
        if address is None:
            check_ports(config)
        with run_state.claim(config.name, run_state.run_folder()) as state_path:
            return _serve_claimed(config, config_path, overrides, address, state_path, timings)
    except (CannotListen, run_state.AlreadyRunning) as error:
        console.error(str(error))
        return 2
    except OSError as error:
        console.error(f"cannot use {error.filename or run_state.run_folder()}: {error.strerror or error}")
        return 1


def _serve_claimed(
    config: ClusterConfig,
    config_path: Path,
    overrides: Overrides,
    address: str | None,
    state_path: Path,
    timings: bool,
) -> int:
    terminal, log_dir = Console(sys.stdout), None
    try:
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGTERM, _interrupt)
        with ExitStack() as stack:
            where: str | OwnRay
            if address is not None:
                where = address
            else:
                os.environ.update(own_ray.environment())
                log_dir = fresh_log_dir(config.name)
                terminal = Console(take_terminal(log_dir))
                where = stack.enter_context(OwnRay(config, log_dir / "ray.log", state_path, terminal.say))
            terminal.say(describe(config))
            # Imported only here: Ray reads its environment when imported, and its processes start in the meantime.
            from slipstream.cluster.driver import Driver

            driver = Driver(config, config_path, overrides, state_path, log_dir, terminal, timings=timings)
            return driver.run(where)
    except (Interrupted, SystemExit):  # SystemExit: while Ray starts, it handles SIGTERM itself
        terminal.say("interrupted before it was up; everything has been stopped")
        return INTERRUPTED
    except Exception as error:  # the one place that turns unforeseen errors into a sentence
        traceback.print_exc()
        where = f"; the traceback is in {log_dir / 'driver.log'}" if log_dir else ""
        terminal.say(f"slipstream: broke with {type(error).__name__}: {error}{where}")
        return 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one Ctrl-C is enough: what follows is the way out
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted


def ray_address(config: RayConfig) -> str | None:
    """The address of the existing Ray to use; None: start one of our own."""
    address = config.address or os.environ.get("RAY_ADDRESS") or None
    return None if address == "local" else address


def describe(config: ClusterConfig) -> str:
    pools = ", ".join(f"{pool.replicas} x {role} (tp {pool.tp})" for role, pool in config.pools())
    return f"Slipstream serves {config.model.name}: {pools}"


def check_ports(config: ClusterConfig) -> None:
    """Raises CannotListen if a port cannot be used. This is checked before anything is started; if a port is taken
    later, the router will report it."""
    for problem in filter(None, map(why_not_there, listeners(config))):
        raise CannotListen(problem)


def fresh_log_dir(name: str) -> Path:
    """An empty folder for the logs of this run; those of the last run are removed."""
    log_dir = run_state.cache_folder() / "logs" / name
    log_dir.mkdir(parents=True, exist_ok=True)
    for old in log_dir.glob("*.log"):
        old.unlink()
    return log_dir


def take_terminal(log_dir: Path) -> TextIO:
    """Returns a stream to the terminal that only we use. What Ray and native libraries print goes to the driver's
    log."""
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    redirect_output("driver", str(log_dir / "driver.log"))
    return terminal


@click.command("serve")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--name", help="Overrides the name in the configuration.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Overrides the HTTP port in the configuration; 0: any free port."
)
@click.option("--timings", is_flag=True, help="Show where the time of the start went.")
def serve_command(config: Path, name: str | None, port: int | None, timings: bool) -> None:
    """Serve CONFIG until Ctrl-C, on a Ray of its own or on the one that RAY_ADDRESS or the configuration names."""
    code = serve(config, name=name, port=port, timings=timings)
    if code == INTERRUPTED:
        # Everything is cleaned up, but a Ray that was interrupted while connecting may crash in its exit handlers.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    serve_command()
