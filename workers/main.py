"""A worker group as a plain program, for machines without Ray and for tests:

    python -m slipstream.workers.main --config worker.yaml

The file (YAML or JSON) has the fields of `WorkerConfig`. With `tp` > 1 the other ranks are started as child processes.
SIGTERM and SIGINT drain it; a second signal ends it at once. Exit codes: 0 after a drain, 1 after a failure, 2 for bad
settings.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click
import yaml
from pydantic import TypeAdapter, ValidationError

from slipstream.router.process.log_format import log_to_stderr
from slipstream.workers.backends.python.instance.parent_death import end_with_parent
from slipstream.workers.config.worker_config import WorkerConfig
from slipstream.workers.telemetry.worker_report import WorkerFailed


@click.command()
@click.option("--config", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--rank", type=int, help="Run this rank; the group's address is read from standard input.")
@click.option("--parent", type=int, help="The process that has started it, with which it is to end.")
def main(path: Path, rank: int | None, parent: int | None) -> None:
    """Runs one worker group until it is drained."""
    if parent is not None:
        end_with_parent(parent)
    try:
        config = TypeAdapter(WorkerConfig).validate_python(yaml.safe_load(path.read_text()))
    except (ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: {error}") from error
    log_to_stderr("worker")
    # Imported here because torch takes a second to import, and bad settings should be reported before that.
    from slipstream.workers.group_processes import run_leader, run_rank

    try:
        if rank is None:
            run_leader(config, path)
        else:
            run_rank(config, rank)
    except WorkerFailed as error:
        _exit(1, f"{config.name}: {error}")
    _exit(0)


def _exit(code: int, error: str | None = None) -> None:
    """Exits without waiting for threads, one of which may be stuck in a collective with a dead rank."""
    if error is not None:
        print(f"error: {error}", file=sys.stderr)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
