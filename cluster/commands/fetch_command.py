"""The command `slipstream fetch`: downloads models into this host's cache before they are served."""

from __future__ import annotations

import sys

import click

from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.downloads import Downloads
from slipstream.cluster.sizing.target_type import Target, TargetType
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.model_files.sources.weights_url import WeightsUrl


@click.command("fetch")
@click.argument("targets", metavar="CONFIG|MODEL...", nargs=-1, required=True, type=TargetType())
def fetch_command(targets: tuple[Target, ...]) -> None:
    """Download models into this host's cache, so that a start or an update finds them there.

    CONFIG is a configuration, of which all models are fetched, MODEL the address of one, such as
    hf://ORGANIZATION/NAME. What is there already is not fetched again.
    """
    failed = False
    for target in targets:
        try:
            _fetch(target)
        except ConfigError as error:
            failed = True
            for problem in error.problems:
                console.error(problem)
        except SourceError as error:
            failed = True
            console.error(str(error))
    sys.exit(2 if failed else 0)


def _fetch(target: Target) -> None:
    """Raises ConfigError and SourceError."""
    files = Downloads(Console(sys.stdout))
    if isinstance(target, WeightsUrl):
        directory, _ = files.local(target, None, ModelCacheConfig())
        click.echo(f"{target}: {directory}")
        return
    for entry in load_config(target, files=files).entries():
        click.echo(f"{target}: {entry.name}: {entry.path}")
