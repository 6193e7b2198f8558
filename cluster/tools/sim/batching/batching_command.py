"""`slipstream sim-batching`: what the batcher of a tensor model makes of a load."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys

import click

from slipstream.cluster.terminal import console
from slipstream.cluster.tools.report.table import Table
from slipstream.cluster.tools.sim.batching.batching_run import BatchingOutcome, BatchingRun, ExecutionTime, TensorLoad
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError
from slipstream.router.tensors.model_spec import ModelSpec


def spec_of(repository: str, model: str) -> ModelSpec:
    """Raises RepositoryError or LoadError."""
    draft = ModelRepository([repository]).read(model)
    return draft.complete(draft.versions[-1])


def with_delay(spec: ModelSpec, delay_us: int | None) -> ModelSpec:
    """With another `max_queue_delay_microseconds`, where the model has one at all."""
    dynamic, sequences = spec.dynamic_batching, spec.sequence_batching
    if delay_us is None:
        return spec
    if sequences is not None:
        return dataclasses.replace(spec, sequence_batching=dataclasses.replace(sequences, max_queue_delay_us=delay_us))
    if dynamic is not None:
        return dataclasses.replace(spec, dynamic_batching=dataclasses.replace(dynamic, max_queue_delay_us=delay_us))
    return spec


def delay_us_of(spec: ModelSpec) -> int:
    batching = spec.sequence_batching or spec.dynamic_batching
    return batching.max_queue_delay_us if batching is not None else 0


def row_of(way: str, delay_us: int, outcome: BatchingOutcome) -> list[str | float | int]:
    return [
        way,
        len(outcome.busy_s),
        delay_us,
        round(outcome.requests_s, 1),
        round(1e3 * outcome.latency_s(0.5), 2),
        round(1e3 * outcome.latency_s(0.99), 2),
        round(outcome.rows_a_batch, 2),
        round(100 * outcome.utilization),
        " ".join(f"{100 * busy_s / outcome.duration_s:.0f}" for busy_s in outcome.busy_s.values()),
        outcome.num_refused,
    ]


def speeds_of(text: str) -> list[float]:
    """Raises UsageError."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < speed < math.inf for speed in found):
        raise click.UsageError(f"--speeds: expected numbers over 0 with commas between them, got {text!r}")
    return found


@click.command("sim-batching")
@click.argument("repository")
@click.argument("model")
@click.option("--rate", type=float, default=0.0, help="Requests (of sequences: sequences) that come a second.")
@click.option("--clients", type=click.IntRange(1), default=1, help="Without --rate: each waits for its answer.")
@click.option("--steps", type=click.IntRange(1), default=1, help="Requests of a sequence.")
@click.option("--rows", type=click.IntRange(1), default=1, help="Rows of a request.")
@click.option("--batch-ms", type=float, required=True, help="Milliseconds of an execution, whatever its size.")
@click.option("--row-ms", type=float, default=0.0, help="Milliseconds more for each row.")
@click.option("--instances", "-i", multiple=True, type=click.IntRange(1), help="Instead of instance_group. Repeatable.")
@click.option("--speeds", metavar="S,S,...", help="Of unequal instances: at 0.5 an execution takes twice as long.")
@click.option("--push", is_flag=True, help="Compare with requests that are given to the instances in turns.")
@click.option("--delay-us", "-d", multiple=True, type=int, help="Instead of max_queue_delay_microseconds. Repeatable.")
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Of virtual time.")
@click.option("--seed", type=int, default=0)
def sim_batching_command(
    repository: str,
    model: str,
    *,
    rate: float,
    clients: int,
    steps: int,
    rows: int,
    batch_ms: float,
    row_ms: float,
    instances: tuple[int, ...],
    speeds: str | None,
    push: bool,
    delay_us: tuple[int, ...],
    seconds: float,
    seed: int,
) -> None:
    """Shows the throughput and the latencies of MODEL in REPOSITORY under a load, by the router's own batcher."""
    try:
        spec = spec_of(repository, model)
    except (RepositoryError, LoadError, ValueError) as error:
        console.error(str(error))
        sys.exit(1)
    load = TensorLoad(rate, clients, steps, rows, seconds, seed)
    time = ExecutionTime(batch_ms / 1e3, row_ms / 1e3)
    own_instances = sum(group.count * max(1, len(group.devices)) for group in spec.instance_groups)
    table_rows = []
    fleets = [speeds_of(speeds)] if speeds else [[1.0] * number for number in instances or (max(1, own_instances),)]
    for fleet, delay, way in itertools.product(fleets, delay_us or (None,), ("pull", "push")[: 1 + push]):
        tried = with_delay(spec, delay)
        outcome = BatchingRun(tried, load, time, fleet, is_pushed=way == "push").run()
        table_rows.append(row_of(way, delay_us_of(tried), outcome))
    columns = (
        "way",
        "instances",
        "delay us",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "rows a batch",
        "busy %",
        "of each",
        "refused",
    )
    click.echo(Table(spec.name, columns, table_rows).text(), nl=False)
