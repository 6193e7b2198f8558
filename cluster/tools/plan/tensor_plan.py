"""`slipstream plan --repository`, from the options to the `config.pbtxt`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.cluster.terminal import console
from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.tensor_bench import SEQUENCE_LENGTH, shapes_of
from slipstream.cluster.tools.bench.tensors.clients.served_folder import served_folder
from slipstream.cluster.tools.bench.tensors.data_file import streams_of_file
from slipstream.cluster.tools.bench.tensors.model_facts import TensorModelFacts
from slipstream.cluster.tools.bench.tensors.tensor_data import InferSource, MadeData, batched
from slipstream.cluster.tools.plan.planned_config import PlanError
from slipstream.cluster.tools.plan.tensors.config_edit import edited
from slipstream.cluster.tools.plan.tensors.measured_search import MeasuredSearch, SearchOutcome
from slipstream.cluster.tools.plan.tensors.search_report import search_json, search_report
from slipstream.cluster.tools.plan.tensors.tensor_settings import SettingSpace, TensorSettings
from slipstream.router.model_repository.config.backends import LANGUAGE_BACKENDS
from slipstream.router.model_repository.config.config_fault import ModelConfigError
from slipstream.router.model_repository.config.config_text import parse_text

CONFIG_FILE = "config.pbtxt"
TIMEOUT_S = 30.0
IN_PLACE = Path("-")  # of `--write` without a file


@dataclass(frozen=True, slots=True)
class TensorPlanGoal:
    """`latency_ms` limits the p99. `max_instances` and `max_batch_size` None: twice the cores, and what the model has.
    Without an `input_file`, requests are made up; `shapes` are of inputs whose dims may vary."""

    repository: Path
    model: str
    latency_ms: float
    seconds: float
    max_instances: int | None = None
    max_batch_size: int | None = None
    input_file: Path | None = None
    shapes: Sequence[str] = ()

    @property
    def config_file(self) -> Path:
        return self.repository / self.model / CONFIG_FILE


def run_tensor_plan(goal: TensorPlanGoal, write_file: Path | None, json_file: Path | None, width: int) -> None:
    """Measures, shows what was found, and writes it. Raises PlanError, or OSError if a file cannot be written."""
    text = config_text(goal)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        console.warning(f"this machine is busy (load {load:.1f} on {cores} cores), which widens the p99")
    try:
        outcome = uvloop.run(searched(goal))
    except BenchError as error:
        raise PlanError(str(error)) from None
    click.echo(search_report(goal.model, goal.latency_ms, outcome).text(width), nl=False)
    if json_file is not None:
        found = search_json(goal.model, goal.latency_ms, outcome)
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if write_file is None:
        return
    path = goal.config_file if write_file == IN_PLACE else write_file
    if not outcome.is_gain:
        click.echo(f"\n{path} is not written: the present settings stay")
        return
    path.write_text(edited(text, outcome.best.settings), encoding="utf-8")
    click.echo(f"\nwritten to {path}")


def config_text(goal: TensorPlanGoal) -> str:
    """The file as it is, "" without one. Raises PlanError for a model that has nothing to search for."""
    if not goal.config_file.parent.is_dir():
        raise PlanError(f"{goal.repository} has no model {goal.model!r}")
    try:
        text = goal.config_file.read_text(encoding="utf-8") if goal.config_file.exists() else ""
        config = parse_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{goal.config_file}: {error}") from None
    except ModelConfigError as error:
        raise PlanError(f"{goal.config_file}: {error}") from None
    if config.HasField("ensemble_scheduling"):
        steps = ", ".join(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))
        raise PlanError(f"{goal.model} is an ensemble, which has no instances: plan its models ({steps})")
    if config.backend in LANGUAGE_BACKENDS:
        raise PlanError(f"{goal.model} is a language model: `slipstream plan --profile` plans those")
    return text


async def searched(goal: TensorPlanGoal) -> SearchOutcome:
    """Raises BenchError."""
    async with served_folder(str(goal.repository), goal.model, "", TIMEOUT_S) as client:
        fields = await client.config()
        facts = TensorModelFacts.of_config(fields)
        config = json_format.ParseDict(fields, ModelConfig())
        search = MeasuredSearch(client, config, source_of(goal, facts), goal.latency_ms, note)
        try:
            return await search.run(space_of(goal, config), goal.seconds)
        finally:
            clear_note()


def source_of(goal: TensorPlanGoal, facts: TensorModelFacts) -> InferSource:
    """Requests of one row. Raises BenchError."""
    shapes = shapes_of(tuple(goal.shapes))
    if goal.input_file is not None:
        streams = streams_of_file(goal.input_file, facts, shapes)
    else:
        streams = [MadeData(shapes=shapes).inputs(facts, seed=0)]
    length = (0 if goal.input_file is not None else SEQUENCE_LENGTH) if facts.has_sequences else None
    return InferSource(batched(streams, facts, 1), length)


def space_of(goal: TensorPlanGoal, config: ModelConfig) -> SettingSpace:
    """A delay above half of the limit is left out. Schedulers of sequences are not varied."""
    present = TensorSettings.of_config(config)
    cores = len(os.sched_getaffinity(0))
    return SettingSpace(
        max_instances=max(goal.max_instances or 2 * cores, 1),
        largest_batch=goal.max_batch_size or present.max_batch_size,
        max_delay_us=round(goal.latency_ms * 1e3 / 2),
        tunes_batching=not config.HasField("sequence_batching"),
    )


def note(settings: TensorSettings) -> None:
    """At a terminal: what is measured."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{str(settings)[:100]}", nl=False, err=True)


def clear_note() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
