"""The command `slipstream planner`: what the planner did, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from slipstream.cluster.admin_api.client.cluster_choice import JSON, ClusterChoice, of_a_cluster, takes_name
from slipstream.cluster.terminal.command_error import exit_on_command_error


@click.command("planner")
@click.option("--last", metavar="N", type=click.IntRange(1, 1000), default=20, show_default=True, help="So many.")
@click.option("--changes", is_flag=True, help="Only decisions that changed something.")
@click.option("--alternatives", is_flag=True, help="With what was rejected, and why.")
@takes_name
@of_a_cluster
@JSON
def planner_command(cluster: ClusterChoice, last: int, changes: bool, alternatives: bool, as_json: bool) -> None:
    """List the planner's latest decisions, the last one first."""
    with exit_on_command_error():
        reply = cluster.admin_api().get(f"/v1/planner/decisions?last={last}&changes={str(changes).lower()}")
    if as_json:
        click.echo(json.dumps(reply, indent=1))
    elif not reply["enabled"]:
        click.echo("no planner is enabled; planner.enabled: true in the configuration turns it on")
    else:
        click.echo("\n".join(lines(reply["decisions"], alternatives)))


def lines(decisions: list[dict[str, Any]], with_alternatives: bool) -> Iterator[str]:
    """A table for people; below a decision, if asked for, what it was chosen from."""
    has_models = any("model" in one for one in decisions)
    rows = [("TIME", *(["MODEL"] if has_models else []), "REASON", "POOLS", "ACTIONS", "WHY")]
    rows += [
        (
            time.strftime("%H:%M:%S", time.localtime(one["unix_s"])),
            *([one.get("model", "-")] if has_models else []),
            one["reason"],
            _size(one),
            ", ".join(map(action_text, one["actions"])) or "-",
            "; ".join([one["why"], *(f"not done: {text}" for text in one["failed"])]),
        )
        for one in decisions
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if with_alternatives and number:
            for other in decisions[number - 1]["alternatives"]:
                yield _alternative(other)
            for transfer in decisions[number - 1].get("transfers", []):
                yield f"    {transfer['why'] or _rejected(transfer)}"


def _size(decision: dict[str, Any]) -> str:
    count = decision.get("num_instances")
    if count is None:
        return f"{decision['num_prefill']}P{decision['num_decode']}D"
    return f"{count} instance{'' if count == 1 else 's'}"


def action_text(action: Mapping[str, Any]) -> str:
    match action["action"]:
        case "add":
            return f"+{action['count']} {action['role']}"
        case "remove":
            return f"-{action['name']}"
        case "move":
            return f"{action['name']} -> {action['model']} {action['role']}"
        case "instances":
            return f"{action['count']} of version {action['version']}"
        case _:
            return f"{action['name']} -> {action['role']}"


def _rejected(transfer: dict[str, Any]) -> str:
    return f"{transfer['giver']} gives none to {transfer['taker']}: {transfer['rejected']}"


def _alternative(one: dict[str, Any]) -> str:
    ttft = "never" if one["ttft_s"] is None else f"{one['ttft_s'] * 1e3:.0f} ms"
    itl = "-" if one["itl_s"] is None else f"{one['itl_s'] * 1e3:.1f} ms"
    price = f" ({one['price_per_hour']:g} an hour)" if one.get("price_per_hour") is not None else ""
    return (
        f"    {one['num_prefill']}P{one['num_decode']}D  keeps {one['attainment']:.0%}, {one['goodput_per_s']:.2f}/s, "
        f"TTFT {ttft}, ITL {itl}, cost {one['cost']:.2f}{price}: {one['rejected'] or 'taken'}"
    )
