"""The command `slipstream check`: what `serve` would refuse, found without starting anything; and the present names of
settings, written into a file that has former ones."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from slipstream.cluster.commands.checking.repository_problems import named_models, problems_in_repository
from slipstream.cluster.commands.checking.start_check import lacks_here, taken_addresses
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_warnings import Machine, warnings_about
from slipstream.cluster.config.loading.file_rewrite import rewrite
from slipstream.cluster.config.loading.model_settings import models_by_key
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.model_dir import examine_text, model_notes
from slipstream.cluster.repository.outlines import Outlines
from slipstream.cluster.sizing.config_choice import checked_config
from slipstream.cluster.sizing.target_type import Target, TargetType
from slipstream.cluster.terminal import console
from slipstream.router.model_files.sources.weights_url import WeightsUrl


@click.command("check")
@click.argument("configs", metavar="CONFIG|MODEL...", nargs=-1, required=True, type=TargetType())
@click.option("--elsewhere", is_flag=True, help="They are for other machines: leave ports, addresses and sizes aside.")
@click.option(
    "--rewrite", "rewrites", is_flag=True, help="Replace former names of settings in the files, and do no more."
)
def check_command(configs: tuple[Target, ...], elsewhere: bool, rewrites: bool) -> None:
    """Check configurations, or what would be chosen for models, without starting anything: all that `serve`
    would refuse on this machine."""
    failed = False
    for path in configs:
        try:
            problems = _rewritten(path) if rewrites else _checked(path, elsewhere)
        except ConfigError as error:
            problems = error.problems
        for problem in problems:
            failed = True
            console.error(problem)
    sys.exit(2 if failed else 0)


def _rewritten(path: Target) -> list[str]:
    """Rewrites a file and says what has changed in it. Returns no problems. Raises ConfigError."""
    if isinstance(path, WeightsUrl):
        return [f"{path}: is a model, and no configuration"]
    for change in rewrite(path) or [f"{path}: has no former names"]:
        click.echo(change)
    return []


def _checked(path: Target, elsewhere: bool) -> list[str]:
    """The problems of a configuration or a model, as sentences. Shows its warnings and a summary if it has none. Raises
    ConfigError."""
    with Outlines() as files:
        try:
            problems = _checked_with(files, path, elsewhere)
        except ConfigError as error:
            problems = error.problems
        for note in files.notes if not problems else ():
            click.echo(f"{path}: {note}")
        return list(map(files.named, problems))


def _checked_with(files: Outlines, path: Target, elsewhere: bool) -> list[str]:
    config, machine = checked_config(path, files), Machine.this()
    is_folder = config.repository.is_on and isinstance(path, Path) and path.is_dir()  # which may be served meanwhile
    taken = [] if elsewhere else list(taken_addresses(config))
    refusals = [*(() if is_folder else taken), *(() if elsewhere else lacks_here(config, machine))]
    named = named_models(config.repository)
    refusals += named.refusals
    outputs: list[str] = []
    for key, alone in models_by_key(config):
        found = examine_text(alone)
        if (of_text := found.problem) is not None:
            refusals.append(f"{'.'.join(key)}.{of_text.removeprefix('model.')}" if key else of_text)
        elif found.outputs:
            outputs.append(f"{path}: {alone.model.name}: {found.outputs}")
    served = {entry.name for entry in config.entries()}
    of_models = list(map(str, problems_in_repository(config.repository, served)))
    is_refused = config.repository.control_mode == "none" and config.repository.exit_on_error
    problems, remarks = (of_models, []) if is_refused else ([], of_models)
    if not refusals and not problems:
        for remark in (*remarks, *(f"{path}: {text}" for text in (*taken, *named.warnings))):
            console.warning(remark)
        for warning in warnings_about(config, machine):
            console.warning(files.named(f"{path}: {warning}"))
        models = [_models_line(alone) for alone in config.each()]
        models += [f"the models in {folder}" for folder in config.repository.paths]
        click.echo(f"{path}: ok: {'; '.join(models)}, HTTP port {config.router.http.port}")
        for line in outputs:
            click.echo(line)
        if isinstance(path, Path) and path.is_file():  # for a model directory, the chosen settings list these notes
            for alone in config.each():
                for note in model_notes(alone):
                    click.echo(f"{path}: {alone.model.name}: {note}")
    return [*(f"{path}: {refusal}" for refusal in refusals), *problems]


def _models_line(config: ClusterConfig) -> str:
    """A model and its pools."""
    pools = ", ".join(f"{pool.replicas} x {role} (tp {pool.tp})" for role, pool in config.pools())
    return f"{config.model.name} with {pools}"
