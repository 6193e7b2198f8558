"""Serves one configuration until a signal: `python -m slipstream.cluster.serve CONFIG`. For a model's directory in
the place of CONFIG, or for the demo model without one, `sizing` chooses the configuration.

Runs wherever a driver of Ray runs: from a terminal, with a Ray of its own, or as a job of an existing cluster
(`ray job submit --working-dir . -- python -m slipstream.cluster.serve CONFIG`).

Exit codes: 0 stopped normally; 1 did not come up, or broke; 2 the configuration, a port or the name cannot be used;
3 its Ray ended before it was up, or while it stopped; 130 interrupted before it was up; 128 and the number of a signal:
killed by it before it was up, or while it stopped. Later ends of that kind have another driver follow (`guardian`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from slipstream.cluster.driver.guardian import guard
from slipstream.cluster.processes.guardian_link import INTERRUPTED, GuardianLink
from slipstream.cluster.sizing.target_type import ServeTarget, Target, TargetType
from slipstream.cluster.triton_flags.flag import FlagError
from slipstream.cluster.triton_flags.flag_table import FLAGS
from slipstream.cluster.triton_flags.repository_flags import RepositoryFlags, option_of
from slipstream.router.process.module_command import module_command


@click.command("serve")
@click.argument("target", metavar="[CONFIG|MODEL]", required=False, type=TargetType())
@click.option("--name", help="Overrides the name in the configuration.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Overrides the HTTP port in the configuration; 0: any free port."
)
@click.option(
    "--host", metavar="ADDRESS", help="Overrides the HTTP address in the configuration; 0.0.0.0: all of this host."
)
@click.option("--timings", is_flag=True, help="Show where the time of the start went.")
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the configuration that is chosen for MODEL to FILE, which must not exist, and do not serve.",
)
def serve_command(
    target: Target | None,
    name: str | None,
    port: int | None,
    host: str | None,
    timings: bool,
    write: Path | None,
    **flags: object,
) -> None:
    """Serve until Ctrl-C.

    CONFIG is a configuration; it runs on a Ray of its own or on the one that RAY_ADDRESS or the configuration names.
    MODEL is the directory of a model, by default that of the demo model, or the address of one that is downloaded:
    hf://ORGANIZATION/NAME, s3://, gs:// or az:// with BUCKET/FOLDER, https://HOST/FOLDER. Workers and page memory are
    chosen for this machine.

    With --model-repository the cluster serves the tensor models of a repository in Triton's layout, and takes the
    options of Triton's server.
    """
    given = _with_flags(target, flags)
    if write is not None:
        from slipstream.cluster.sizing.config_choice import write_chosen

        sys.exit(write_chosen(given, write, name, port))
    guardian = GuardianLink.of_this_process()
    if guardian is None:
        options = [f"--name={name}"] * (name is not None) + [f"--port={port}"] * (port is not None)
        options += [f"--host={host}"] * (host is not None) + ["--timings"] * timings
        options += given.arguments() if isinstance(given, RepositoryFlags) else []
        options += ["--"] if target is None else ["--", str(target)]
        sys.exit(guard(module_command("slipstream.cluster.serve", *options)))
    # Imported only here: the guardian has no use for it.
    from slipstream.cluster.config.loading.overrides import Overrides
    from slipstream.cluster.driver.driver_process import run_driver

    with closing(guardian):
        code = run_driver(guardian, given, Overrides(name, port, host), timings=timings)
    if code == INTERRUPTED:
        # Everything is cleaned up, but a Ray that was interrupted while connecting may crash in its exit handlers.
        os._exit(code)
    sys.exit(code)


def _with_flags(target: Target | None, flags: Mapping[str, object]) -> ServeTarget | None:
    """The target, or the flags of Triton's server if some were given."""
    try:
        given = RepositoryFlags.of(flags)
    except FlagError as error:
        raise click.UsageError(str(error)) from None
    if given is not None and target is not None:
        raise click.UsageError(
            f"--model-repository stands in the place of {target}, whose section `repository` does the same"
        )
    return target if given is None else given


serve_command.params += map(option_of, FLAGS)


if __name__ == "__main__":
    serve_command()
