"""The driver's process, from its configuration to its end; `serve` has the command and the exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TextIO

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_warnings import Machine, missing_parts, warnings_about
from slipstream.cluster.config.loading.overrides import Overrides
from slipstream.cluster.config.served_config import from_plain
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.driver.listeners import listeners, why_no_unix_socket, why_not_there
from slipstream.cluster.processes.guardian_link import INTERRUPTED, GuardianLink
from slipstream.cluster.processes.process_log import redirect_output
from slipstream.cluster.ray import local_ray
from slipstream.cluster.ray.local_ray import LocalRay, ray_address
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.sizing.config_choice import ConfigSource, config_source
from slipstream.cluster.sizing.target_type import ServeTarget
from slipstream.cluster.state import clusters_here, host_folders, name_claim, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.console import Console
from slipstream.router.protocol.messages import Role


class CannotListen(Exception):  # noqa: N818 - reads as the sentence it carries
    """A port is in use, or an address does not belong to this machine."""


class Interrupted(BaseException):
    """A signal came before the cluster was up. It is not an Exception, so that no handler in between catches it."""


def run_driver(guardian: GuardianLink, target: ServeTarget | None, overrides: Overrides, *, timings: bool) -> int:
    """Serves a configuration, or one that is chosen for a model (`sizing.serve_target`), to the end. Returns the exit
    code; everything else is reported at the terminal."""
    try:
        _end_on_signal()  # a signal may have come already
        return _run(guardian, target, overrides, timings)
    except Interrupted:
        console.error("interrupted before it was up")
        return INTERRUPTED


def _run(guardian: GuardianLink, target: ServeTarget | None, overrides: Overrides, timings: bool) -> int:
    before = state_before(guardian)
    try:
        source = (
            config_source(target, overrides.name, overrides.port)
            if before is None
            else ConfigSource(Path(before.config))
        )
        config = (from_plain(before.served) if before is not None else None) or source.load(
            partial(overrides.load, files=Downloads(Console(sys.stderr), must_be_newest=False))
        )
    except ConfigError as error:
        for problem in error.problems:
            console.error(problem)
        return 2
    except name_claim.AlreadyRunning as error:
        console.error(str(error))
        return 2
    except host_folders.NoHome as error:
        console.error(str(error))
        return 1
    if before is None:
        for warning in warnings_about(config, Machine.this()):
            console.warning(source.sentence(f"{source.path}: {warning}"))
    address = ray_address(config.ray)
    try:
        if before is None:
            name_claim.check_unused(config.name, host_folders.run_folder())  # says more than a port that is in use
        if address is None and not guardian.is_again:  # else the holder has the ports
            check_ports(config, source)
        with name_claim.claim(config.name, host_folders.run_folder(), guardian.pid) as state_path:
            left = state_file.read(state_path)
            if left is not None and left.pid != guardian.pid:
                console.warning(f"the cluster that was called {config.name} has ended: {left.last_words}")
            code = _serve(DriverTask(guardian, config, source.path, overrides, before, state_path, timings), address)
            # The next driver goes by the state. If there is none, the guardian may be killed before it removes that:
            # `ray job stop` waits 3 s.
            if not guardian.is_alive or not guardian.starts_another:
                state_path.unlink(missing_ok=True)
            return code
    except (CannotListen, name_claim.AlreadyRunning) as error:
        console.error(str(error))
        return 2
    except OSError as error:
        console.error(f"cannot use {error.filename or host_folders.run_folder()}: {error.strerror or error}")
        return 1


def state_before(guardian: GuardianLink) -> ClusterState | None:
    """What the previous driver of the same guardian has left, with the configuration that it served: that of the
    latest update, or the file as it was then. What has been written into the file since is no part of it."""
    if not guardian.is_again:
        return None
    states = clusters_here.read_all(host_folders.run_folder())
    return next((one for one in states if (one.pid, one.started) == (guardian.pid, guardian.started)), None)


def _serve(task: DriverTask, address: str | None) -> int:
    """Runs the driver on the Ray at that address, or on one of its own."""
    guardian, config = task.guardian, task.config
    terminal, log_dir = Console(sys.stdout), None
    try:
        with ExitStack() as stack:
            ray: str | LocalRay
            if address is not None:
                ray = address
            else:
                os.environ.update(local_ray.environment())
                log_dir = log_folder(config.name, is_fresh=not guardian.is_again)
                terminal = Console(take_terminal(log_dir, config.log.format))
                ray = stack.enter_context(LocalRay(config, log_dir / "ray.log"))
                ray.reaper.remove_after(guardian.pid, guardian.started, task.state_path)
                if guardian.holder is not None:
                    ray.reaper.remove_after(guardian.pid, guardian.started, guardian.holder.path.parent)
            terminal.say(describe(config, task.before))
            for sentence in missing_parts(config) if task.before is None else ():
                terminal.say(sentence)
            # Imported only here: Ray reads its environment when imported, and its processes start in the meantime.
            from slipstream.cluster.driver.driver import Driver

            return Driver(task, log_dir, terminal).run(ray)
    except (Interrupted, SystemExit):  # SystemExit: while Ray starts, it handles SIGTERM itself
        terminal.say("interrupted before it was up; everything has been stopped")
        return INTERRUPTED
    except Exception as error:  # the one place that turns unforeseen errors into a sentence
        traceback.print_exc()
        place = f"; the traceback is in {log_dir / 'driver.log'}" if log_dir else ""
        terminal.say(f"slipstream: broke with {type(error).__name__}: {error}{place}")
        return 1


def _end_on_signal() -> None:
    """The guardian blocks signals until there is somebody to handle them."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one Ctrl-C is enough: what follows is the way out
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted


def describe(config: ClusterConfig, before: ClusterState | None) -> str:
    """`before` has how many groups there are to be where that is not as in the configuration any more."""

    def pools_of(alone: ClusterConfig) -> str:
        wanted: dict[Role, int] = {}
        if before is not None:
            wanted = before.of_model(alone.model.name).wanted if before.further else before.wanted
        pools = [f"{wanted.get(role, pool.replicas)} x {role} (tp {pool.tp})" for role, pool in alone.pools()]
        return f"{alone.model.name}: {', '.join(pools)}"

    served = [pools_of(alone) for alone in config.each()]
    if config.repository.is_on:
        served.append(f"the models in {', '.join(config.repository.paths)}")
    return f"Slipstream serves {'; '.join(served)}"


def check_ports(config: ClusterConfig, source: ConfigSource) -> None:
    """Raises CannotListen if a port cannot be used. This is checked before anything is started; if a port is taken
    later, the router will report it."""
    for problem in filter(None, (*map(why_not_there, listeners(config)), why_no_unix_socket(config))):
        raise CannotListen(source.sentence(problem))


def log_folder(name: str, *, is_fresh: bool) -> Path:
    """The folder for the logs of this run, in which those of the last run are removed if it `is_fresh`."""
    log_dir = host_folders.cache_folder() / "logs" / name
    log_dir.mkdir(parents=True, exist_ok=True)
    for old in log_dir.glob("*.log") if is_fresh else ():
        old.unlink()
    return log_dir


def take_terminal(log_dir: Path, log_format: str | None) -> TextIO:
    """Returns a stream to the terminal that only we use. What Ray and native libraries print goes to the driver's
    log."""
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    redirect_output("driver", str(log_dir / "driver.log"), log_format)
    return terminal
