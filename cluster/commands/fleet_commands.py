"""The commands `slipstream scale`, `drain`, `role` and `move`: request a change from the admin API and follow it to its
end."""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
from typing import Any, NoReturn

import click

from slipstream.cluster.admin_api.client.admin_port import AdminPort, CallOptions
from slipstream.cluster.admin_api.client.cluster_choice import DETACH, MODEL, ClusterChoice, changes_a_cluster
from slipstream.cluster.state.repository_lines import instances_line
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import CommandError, exit_on_command_error
from slipstream.router.protocol.messages import ROLES

ASK_EVERY_S = 0.3
AT_ONCE = CallOptions(waits=False)  # after a restart, the workers are others
REPEATABLE = CallOptions(may_repeat=True)
RESTS = frozenset({"ready", "pending", "failed"})  # the states that a member does not leave by itself

FLEET_JSON = click.option("--json", "as_json", is_flag=True, help="Print the fleet at the end as JSON, for programs.")


INSTANCES = "instances="


@click.command("scale")
@click.argument("wanted", metavar="ROLE=N...", nargs=-1, required=True)
@MODEL
@changes_a_cluster
@DETACH
@FLEET_JSON
def scale_command(
    cluster: ClusterChoice, wanted: tuple[str, ...], model: str | None, detach: bool, as_json: bool
) -> None:
    """Grow or shrink pools, as in `slipstream scale prefill=2 decode=3`.

    New workers get requests once they have generated their first tokens. Workers that are removed hand over their
    requests first. Returns when everything is done, or when what is left waits for room.

    `slipstream scale --model NAME instances=3` sets how many instances a model of a repository has, and
    `instances=1..4` within which bounds they follow the demand.
    """
    if wanted[0].startswith(INSTANCES):
        with exit_on_command_error():
            _scale_instances(cluster.admin_api(), wanted, model, detach, as_json)
        return
    replicas: dict[str, int] = {}
    for role, count in map(_replicas, wanted):
        if role in replicas:
            raise click.UsageError(f"{role} is given twice: {' '.join(wanted)}")
        replicas[role] = count
    with exit_on_command_error():
        _scale(cluster.admin_api(), replicas, model, detach, as_json)


@click.command("drain")
@click.argument("worker")
@click.option("--no-migrate", is_flag=True, help="Let running requests end there instead of moving them.")
@changes_a_cluster
@DETACH
@FLEET_JSON
def drain_command(cluster: ClusterChoice, worker: str, no_migrate: bool, detach: bool, as_json: bool) -> None:
    """Empty WORKER without losing a request, then end it for good."""
    with exit_on_command_error():
        admin = cluster.admin_api()
        begun = admin.post(_worker_path(worker, "drain"), {"migrate": not no_migrate}, AT_ONCE)
        _follow(admin, begun, [worker], detach, as_json)


@click.command("role")
@click.argument("worker")
@click.argument("role", type=click.Choice(ROLES))
@changes_a_cluster
@DETACH
@FLEET_JSON
def role_command(cluster: ClusterChoice, worker: str, role: str, detach: bool, as_json: bool) -> None:
    """Make WORKER serve as a prefill or a decode worker, with the weights that it already has in memory."""
    with exit_on_command_error():
        admin = cluster.admin_api()
        begun = admin.post(_worker_path(worker, "role"), {"role": role}, AT_ONCE)
        _follow(admin, begun, [worker], detach, as_json)


@click.command("move")
@click.argument("worker")
@click.argument("model")
@click.option("--role", type=click.Choice(ROLES), help="Its role there; by default the one that it has.")
@changes_a_cluster
@DETACH
@FLEET_JSON
def move_command(
    cluster: ClusterChoice, worker: str, model: str, role: str | None, detach: bool, as_json: bool
) -> None:
    """Empty WORKER, and let its processes load MODEL, which is faster than a new worker."""
    with exit_on_command_error():
        admin = cluster.admin_api()
        begun = admin.post(_worker_path(worker, "model"), {"model": model, "role": role}, AT_ONCE)
        _follow(admin, begun, [worker, *begun["added"]], detach, as_json)


def _worker_path(worker: str, change: str) -> str:
    """The path of a change. Whatever was typed as the name, even bytes that are not text, becomes one part of it."""
    return f"/v1/workers/{urllib.parse.quote(worker, safe='', errors='surrogateescape')}/{change}"


def _replicas(text: str) -> tuple[str, int]:
    role, _, count = text.partition("=")
    if role not in ROLES or not (count.isascii() and count.isdigit()):
        raise click.UsageError(f"expected prefill=N or decode=N, got {text!r}")
    return role, int(count)


def _scale(admin: AdminPort, replicas: dict[str, int], model: str | None, detach: bool, as_json: bool) -> None:
    of_model = f"?model={urllib.parse.quote(model, safe='', errors='surrogateescape')}" if model is not None else ""
    before = admin.get(f"/v1/fleet{of_model}")
    grown_first = sorted(replicas, key=lambda role: replicas[role] < before[f"num_{role}"])
    touched: list[str] = []
    for role in grown_first:
        begun = admin.post(f"/v1/fleet/scale{of_model}", {"role": role, "replicas": replicas[role]}, REPEATABLE)
        touched += begun["added"]
    left = {member["name"] for member in begun["members"] if not member["is_leaving"]}
    touched += [member["name"] for member in before["members"] if member["name"] not in left]
    _follow(admin, begun, touched, detach, as_json, of_model)


def _scale_instances(admin: AdminPort, wanted: tuple[str, ...], model: str | None, detach: bool, as_json: bool) -> None:
    if model is None or len(wanted) > 1:
        raise click.UsageError(f"expected --model NAME and instances=N or instances=MIN..MAX, got {' '.join(wanted)!r}")
    text = wanted[0].removeprefix(INSTANCES)
    least, dots, most = text.partition("..")
    if not all(part.isascii() and part.isdigit() for part in ((least, most) if dots else (least,))):
        raise click.UsageError(f"expected instances=N or instances=MIN..MAX, got {wanted[0]!r}")
    question = {"min": int(least), "max": int(most)} if dots else {"count": int(least)}
    path = f"/v1/instances?model={urllib.parse.quote(model, safe='', errors='surrogateescape')}"
    versions = admin.post(path, question, REPEATABLE)["versions"]
    shown = ""
    while True:
        lines = "\n".join(map(instances_line, versions))
        if lines != shown and not as_json:
            click.echo(lines)
        shown = lines
        if detach or not any(version["is_changing"] for version in versions):
            break
        time.sleep(ASK_EVERY_S)
        versions = admin.get(path)["versions"]
    if as_json:
        click.echo(json.dumps(versions, indent=1))


def _follow(
    admin: AdminPort, fleet: dict[str, Any], names: list[str], detach: bool, as_json: bool, of_model: str = ""
) -> None:
    """Shows the progress of the members until they are at rest or gone. Exits with 1 if one of them cannot start."""
    begun, restarts = fleet, admin.restarts
    if fleet["warning"] is not None:
        console.warning(fleet["warning"])
    shown: dict[str, str] = {}
    while True:
        members = {member["name"]: member for member in fleet["members"]}
        for name in names:
            text = _line(members.get(name))
            if shown.get(name) != text and not as_json:
                click.echo(f"{name}: {text}")
            shown[name] = text
        if detach or all(_is_at_rest(members.get(name)) for name in names):
            break
        time.sleep(ASK_EVERY_S)
        fleet = admin.get(f"/v1/fleet{of_model}")
        if admin.restarts != restarts:
            _exit_after_restart(begun, fleet, as_json)
    if as_json:
        click.echo(json.dumps(fleet, indent=1))
    elif not names:
        click.echo("nothing to change")
    elif waiting := [members[name] for name in names if name in members and members[name]["state"] == "pending"]:
        click.echo(f"{len(waiting)} of {len(names)} wait for room: {waiting[0]['detail']}")
    if any(name in members and members[name]["state"] == "failed" for name in names):
        sys.exit(1)


def _exit_after_restart(begun: dict[str, Any], fleet: dict[str, Any], as_json: bool) -> NoReturn:
    """The cluster has come up anew, with as many workers as were wanted. They have the names that come first, so those
    that were followed may be others now."""
    if as_json:
        click.echo(json.dumps(fleet, indent=1))
    were, are = ({role: one[f"num_{role}"] for role in ROLES} for one in (begun, fleet))
    now = " and ".join(f"{are[role]} {role}" for role in ROLES)
    if are != were:
        wanted = " and ".join(f"{were[role]} {role}" for role in ROLES)
        raise CommandError(f"the cluster has started again meanwhile, with {now} workers; {wanted} were to be there")
    console.error(f"the cluster has started again meanwhile, with {now} workers, which is what was to be there")
    sys.exit(0)


def _is_at_rest(member: dict[str, Any] | None) -> bool:
    return member is None or (member["state"] in RESTS and not member["is_leaving"])


def _line(member: dict[str, Any] | None) -> str:
    if member is None:
        return "gone"
    text = f"{member['role']}, {'leaving' if member['is_leaving'] else member['state']}"
    if member["state"] == "ready" and member["startup_s"] and not member["is_leaving"]:
        stages = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in member["startup_s"])
        return f"{text} ({stages})"
    return f"{text}: {member['detail']}" if member["detail"] else text
