"""The commands `slipstream update`, `split` and `rollback`: another model version or configuration without a pause."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from slipstream.cluster.operator.client import TOKEN_VARIABLE, OperatorClient, operator_of
from slipstream.cluster.operator.command import with_errors
from slipstream.cluster.update.plan import ENDED, UpdateOptions

DEFAULTS = UpdateOptions()
ASK_EVERY_S = 0.5

PATH = "/v1/update"

NAME = click.option("--name", metavar="CLUSTER", help="Which of the clusters that run on this machine.")
URL = click.option("--url", help="The admin API of a cluster elsewhere, which then reads CONFIG there.")
TOKEN = click.option("--token", help=f"The operator's token, with --url [env: {TOKEN_VARIABLE}].")
JSON = click.option("--json", "as_json", is_flag=True, help="For programs: the last answer, whole.")
DETACH = click.option("--detach", is_flag=True, help="Return when it has been begun.")


@click.command("update")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--surge", type=int, default=DEFAULTS.surge, show_default=True, help="Groups more than wanted, a role.")
@click.option(
    "--max-unavailable", type=int, default=DEFAULTS.max_unavailable, show_default=True, help="Groups fewer, a role."
)
@click.option("--split", type=float, help="Percent of new requests for the new version; the update then waits.")
@click.option("--auto", is_flag=True, help="With --split: go on, or back, by what is seen of the new version.")
@click.option("--canary-s", type=float, default=DEFAULTS.canary_s, show_default=True, help="With --auto: at least.")
@click.option(
    "--min-requests", type=int, default=DEFAULTS.min_requests, show_default=True, help="With --auto: at least."
)
@click.option("--start-timeout-s", type=float, default=DEFAULTS.start_timeout_s, show_default=True)
@NAME
@URL
@TOKEN
@DETACH
@JSON
def update_command(
    config: Path | None,
    surge: int,
    max_unavailable: int,
    split: float | None,
    auto: bool,
    canary_s: float,
    min_requests: int,
    start_timeout_s: float,
    name: str | None,
    url: str | None,
    token: str | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Exchange the workers of a running cluster for those of CONFIG, one by one and without a failed request.

    Without CONFIG: show the update that is under way, or the last one. With --split the new version gets that share
    and the update waits for `slipstream split` or `slipstream rollback`. Ends with 1 if it was rolled back.
    """
    if config is None:
        with_errors(lambda: show(operator_of(name, url, token).get(PATH), as_json))
        return
    question = {
        "config": str(config if url is not None else config.resolve()),
        "surge": surge,
        "max_unavailable": max_unavailable,
        "split": split,
        "auto": auto,
        "canary_s": canary_s,
        "min_requests": min_requests,
        "start_timeout_s": start_timeout_s,
    }
    until = {"canary"} if split is not None and not auto else set[str]()

    def run() -> None:
        operator = operator_of(name, url, token)
        follow(operator, operator.post(PATH, question), as_json, until=until, detach=detach)

    with_errors(run)


@click.command("split")
@click.argument("shares", metavar="VERSION=SHARE...", nargs=-1, required=True)
@NAME
@URL
@TOKEN
@JSON
def split_command(shares: tuple[str, ...], name: str | None, url: str | None, token: str | None, as_json: bool) -> None:
    """Divide new requests between the two versions of an update that waits, as in `slipstream split v1=50 v2=50`.

    All for the new version lets the update go on.
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
    with_errors(lambda: show(operator_of(name, url, token).post(f"{PATH}/split", {"weights": weights}), as_json))


@click.command("rollback")
@NAME
@URL
@TOKEN
@DETACH
@JSON
def rollback_command(name: str | None, url: str | None, token: str | None, detach: bool, as_json: bool) -> None:
    """Turn an update round: new requests go to the old version at once, then the new workers go.

    After an update: back to the version before.
    """

    def run() -> None:
        operator = operator_of(name, url, token)
        begun = operator.post(f"{PATH}/rollback")
        follow(operator, begun, as_json, until=set(), detach=detach, expects_rollback=True)

    with_errors(run)


def follow(
    operator: OperatorClient,
    answer: dict[str, Any],
    as_json: bool,
    *,
    until: set[str],
    detach: bool,
    expects_rollback: bool = False,
) -> None:
    """Shows what happens until the update is over or in one of the phases, then ends with 1 if it was rolled back."""
    num_shown = 0
    while True:
        if not as_json:
            for event in answer["events"][num_shown:]:
                click.echo(event["text"])
            num_shown = len(answer["events"])
        if detach or not answer["is_active"] or answer["phase"] in until:
            break
        time.sleep(ASK_EVERY_S)
        answer = operator.get(PATH)
    show(answer, as_json)
    is_back = answer["phase"] in ENDED and answer["phase"] != "done"
    sys.exit(1 if is_back and not expects_rollback else 0)


def show(answer: dict[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(answer, indent=1) if as_json else answer["line"])
