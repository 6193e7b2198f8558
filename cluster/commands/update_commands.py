"""The commands `slipstream update`, `split`, `mirror`, `promote` and `rollback`: change the version of a model, or its
settings, without a pause."""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from slipstream.cluster.admin_api.client.admin_port import AdminPort, CallOptions
from slipstream.cluster.admin_api.client.cluster_choice import (
    DETACH,
    JSON,
    MODEL,
    ClusterChoice,
    changes_a_cluster,
    takes_name,
)
from slipstream.cluster.config.former_names import with_new_keys
from slipstream.cluster.config.settings_file import ConfigError, SettingsFile
from slipstream.cluster.fleet.update_plan import ENDED, UpdateOptions
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import exit_on_command_error
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.sources.weights_url import WeightsUrl, WeightsUrlError

DEFAULTS = UpdateOptions()
ASK_EVERY_S = 0.5
READ = CallOptions(timeout_s=1800.0)  # in which the driver reads all files of the new version


def path_of(change: str, model: str | None) -> str:
    """The path of a call to the admin API."""
    return f"/v1/update{change}" + (f"?model={urllib.parse.quote(model, errors='replace')}" if model else "")


@click.command("update")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--surge", type=int, default=DEFAULTS.surge, show_default=True, help="How many more groups of each role may exist."
)
@click.option(
    "--max-unavailable",
    type=int,
    default=DEFAULTS.max_unavailable,
    show_default=True,
    help="How many fewer groups of each role may serve.",
)
@click.option("--split", type=float, help="The new version's share of new requests, in percent; the update then waits.")
@click.option(
    "--mirror",
    metavar="PERCENT",
    type=float,
    help="First copy so many of the requests to the new version, unseen by clients, and compare the answers.",
)
@click.option(
    "--steps",
    metavar="PERCENT,...",
    callback=lambda _, __, text: steps_of(text),
    help="Raise the new version's share step by step, as in 5,25,50,100; each is judged, a bad one is rolled back.",
)
@click.option("--auto", is_flag=True, help="With --split: continue or roll back by how the new version does.")
@click.option(
    "--canary-s",
    type=float,
    default=DEFAULTS.canary_s,
    show_default=True,
    help="With --auto or --steps: watch at least so long.",
)
@click.option(
    "--min-requests",
    type=int,
    default=DEFAULTS.min_requests,
    show_default=True,
    help="With --auto or --steps: wait for at least so many.",
)
@click.option(
    "--tolerance-percent",
    type=float,
    default=DEFAULTS.tolerance_percent,
    show_default=True,
    help="With --auto or --steps: by how much TTFT and ITL may be longer than the old version's.",
)
@click.option("--start-timeout-s", type=float, default=DEFAULTS.start_timeout_s, show_default=True)
@MODEL
@changes_a_cluster
@DETACH
@JSON
def update_command(
    cluster: ClusterChoice, config: Path | None, model: str | None, detach: bool, as_json: bool, **options: Any
) -> None:
    """Update a running cluster to CONFIG, by exchanging its workers one by one, without a failed request.

    If several clusters run on this machine, it is the one that --name or, without that, the `name` in CONFIG says.
    With --url, CONFIG is a file on that machine. Without CONFIG, the update that is under way, or the last one, is
    shown. With --split, the new version gets that share, and the update waits for `slipstream split` or `slipstream
    rollback`. Exits with 1 if the update was rolled back.
    """
    if config is None:
        with exit_on_command_error():
            show(cluster.admin_api().get(path_of("", model)), as_json)
        return
    question = {"config": str(config if cluster.is_elsewhere else config.resolve()), **options}
    goes_on = options["auto"] or options["steps"]
    until = set[str]() if goes_on else {"mirror"} if options["mirror"] is not None else {"canary"}
    with exit_on_command_error():
        admin = cluster.admin_api(_name_in(config) if not cluster.is_elsewhere else None)
        if not cluster.is_elsewhere:
            _fetch_models(config)
        begun = admin.post(path_of("", model), question, READ)
        follow(admin, begun, as_json, model, until=until, detach=detach)


@click.command("split")
@click.argument("shares", metavar="VERSION=SHARE...", nargs=-1, required=True)
@MODEL
@changes_a_cluster
@JSON
def split_command(cluster: ClusterChoice, shares: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Divide new requests between the two versions of a waiting update, as in `slipstream split v1=50 v2=50`.

    Giving everything to the new version lets the update continue. With --model, also between the versions of a model of
    the repository, as in `slipstream split 1=90 2=10 --model topics`.
    """
    weights: dict[str, float] = {}
    for share in shares:
        version, _, weight = share.rpartition("=")
        try:
            weights[version] = float(weight)
        except ValueError:
            version = ""
        if not version:
            raise click.UsageError(f"expected VERSION=SHARE, got {share!r}")
    with exit_on_command_error():
        show(cluster.admin_api().post(path_of("/split", model), {"weights": weights}), as_json)


@click.command("mirror")
@click.argument("version")
@click.option("--percent", type=float, default=100.0, show_default=True, help="How many of the requests are copied.")
@click.option("--end", is_flag=True, help="Copy no more requests to it.")
@MODEL
@changes_a_cluster
@JSON
def mirror_command(
    cluster: ClusterChoice, version: str, percent: float, end: bool, model: str | None, as_json: bool
) -> None:
    """Copy requests to VERSION of a model of the repository, unseen by clients, and compare the answers.

    It gets no other requests but those that name it. For a language model: `slipstream update FILE --mirror PERCENT`.
    """
    question = {"version": version, "percent": None if end else percent}
    with exit_on_command_error():
        show(cluster.admin_api().post(path_of("/mirror", model), question), as_json)


@click.command("promote")
@click.argument("version")
@click.option(
    "--steps",
    metavar="PERCENT,...",
    default="5,25,50,100",
    show_default=True,
    callback=lambda _, __, text: steps_of(text),
    help="The shares that it gets one after the other; each is judged, a bad one is rolled back.",
)
@click.option("--canary-s", type=float, default=DEFAULTS.canary_s, show_default=True, help="A step lasts so long.")
@click.option("--min-requests", type=int, default=DEFAULTS.min_requests, show_default=True, help="And so many.")
@click.option(
    "--tolerance-percent",
    type=float,
    default=DEFAULTS.tolerance_percent,
    show_default=True,
    help="By how much its requests may take longer than the old version's.",
)
@MODEL
@changes_a_cluster
@DETACH
@JSON
def promote_command(cluster: ClusterChoice, model: str | None, detach: bool, as_json: bool, **question: Any) -> None:
    """Give VERSION of a model of the repository one share of the requests after the other, up to all.

    Each step is compared with the version that served before, by failures and times. Exits with 1 if it was rolled
    back. For a language model: `slipstream update FILE --steps PERCENT,...`.
    """
    with exit_on_command_error():
        admin = cluster.admin_api()
        begun = admin.post(path_of("/promote", model), question)
        follow(admin, begun, as_json, model, until=set(), detach=detach)


@click.command("rollback")
@takes_name
@MODEL
@changes_a_cluster
@DETACH
@JSON
def rollback_command(cluster: ClusterChoice, model: str | None, detach: bool, as_json: bool) -> None:
    """Roll an update back: new requests go to the old version at once, then the new workers are removed.

    After a completed update, update back to the previous version. With --model, also for a model of the repository: all
    requests go to the version that served before the split, and none are copied.
    """
    with exit_on_command_error():
        admin = cluster.admin_api()
        begun = admin.post(path_of("/rollback", model))
        follow(admin, begun, as_json, model, until=set(), detach=detach, expects_rollback=True)


def steps_of(text: str | None) -> list[float]:
    """The percentages in an option. Raises click.BadParameter."""
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise click.BadParameter(f"expected percentages, as in 5,25,50,100, got {text!r}") from None


def follow(
    admin: AdminPort,
    answer: dict[str, Any],
    as_json: bool,
    model: str | None,
    *,
    until: set[str],
    detach: bool,
    expects_rollback: bool = False,
) -> None:
    """Shows what happens until the update has ended or reached one of the phases. Exits with 1 if it was rolled back or
    cut short."""
    num_shown, phase = 0, answer["phase"]
    while True:
        if not as_json:
            for event in answer["events"][num_shown:]:
                click.echo(event["text"])
            num_shown = len(answer["events"])
        if detach or not answer["is_active"] or answer["phase"] in until:
            break
        time.sleep(ASK_EVERY_S)
        phase = answer["phase"]
        answer = admin.get(path_of("", model))
    show(answer, as_json)
    is_back = answer["phase"] in ENDED and answer["phase"] != "done"
    is_expected = expects_rollback and (answer["phase"] != "cut_short" or phase == "rolling_back")
    sys.exit(1 if is_back and not is_expected else 0)


def _name_in(config: Path) -> str | None:
    """The cluster's name in the file; None if there is none, or if the file cannot be read, which the driver reports.
    Warns of former names of settings."""
    try:
        file, warnings = with_new_keys(SettingsFile.read(config, (), needed=""))
    except ConfigError:
        return None
    for warning in warnings:
        console.warning(warning)
    name = file.settings.get("name")
    return name if isinstance(name, str) else None


def _fetch_models(config: Path) -> None:
    """Downloads models that are elsewhere into this host's cache, with progress at this terminal: the driver finds them
    there. What fails is reported by the driver."""
    try:
        if not any(map(WeightsUrl.parse, _paths_in(SettingsFile.read(config, (), needed="").settings))):
            return
        # Imported here because it takes tenths of a second, which only this should pay.
        from slipstream.cluster.config.loading.config_file import load_config
        from slipstream.cluster.repository.downloads import Downloads

        load_config(config, lambda warning: None, Downloads(Console(sys.stderr)))
    except (ConfigError, WeightsUrlError):
        return


def _paths_in(settings: dict[str, Any]) -> Iterator[str]:
    models = settings.get("models")
    for model in (settings.get("model"), *(models if isinstance(models, list) else ())):
        if isinstance(model, dict) and isinstance(model.get("path"), str):
            yield model["path"]


def show(answer: dict[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(answer, indent=1) if as_json else answer["line"])
