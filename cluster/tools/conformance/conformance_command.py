"""The command `slipstream conformance`."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from tempfile import TemporaryFile
from typing import BinaryIO

import click

from slipstream.cluster.tools.conformance.conformance_run import run_checks
from slipstream.cluster.tools.conformance.router_end import TOKEN_VARIABLE, RouterEnd
from slipstream.cluster.tools.conformance.worker_output import WorkerOutput


@click.command("conformance", context_settings={"ignore_unknown_options": True})
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where it waits.")
@click.option("--model", default="conformance", show_default=True, help="The model that the worker is to name.")
@click.option(
    "--worker-output",
    type=click.File("w+b", lazy=False),
    help="A file for what COMMAND prints; without it, its last lines are shown after a rule that is broken.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def conformance_command(listen: str, model: str, worker_output: BinaryIO | None, command: tuple[str, ...]) -> None:
    """Check whether a worker keeps the protocol (docs/protocol).

    COMMAND starts it, behind --; {router} and {model} in it are replaced, and the secret is in
    SLIPSTREAM_WORKER_TOKEN. Without COMMAND the address is printed, and a worker is waited for.

    \b
    slipstream conformance -- python docs/protocol/echo_worker.py {router} {model}
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen: expected HOST:PORT, got {listen!r}")
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(16)
    with worker_output or TemporaryFile() as file:
        output = WorkerOutput(file)
        end = RouterEnd(model, token, command, output)
        sys.exit(asyncio.run(checked(end, output, host, int(port), token)))


async def checked(end: RouterEnd, output: WorkerOutput, host: str, port: int, token: str) -> int:
    """Prints each result. Returns the exit code: 0 if the worker keeps all rules."""
    try:
        address = await end.listen(host, port)
    except OSError as error:
        raise click.UsageError(f"--listen: cannot listen at {host}:{port}: {error.strerror or error}") from error
    if not end.can_start:
        click.echo(f"waiting for a worker of the model {end.model!r} at {address}, with {TOKEN_VARIABLE}={token}")
    num_failed = 0
    try:
        async for result in run_checks(end, address):
            printed = output.news()
            if result.skipped:
                click.echo(f"skip  {result.name}: {result.skipped}")
            elif result.problem is None:
                click.echo(f"ok    {result.name}")
            else:
                num_failed += 1
                click.echo(f"FAIL  {result.name}: {result.problem}\n      {' '.join(result.rule.split())}")
                for line in printed:
                    click.echo(f"      worker: {line}")
    except OSError as error:
        raise click.UsageError(f"the worker cannot be started: {error}") from error
    finally:
        await end.close()
    click.echo("the worker keeps the protocol" if not num_failed else f"broken rules: {num_failed}")
    return 1 if num_failed else 0
