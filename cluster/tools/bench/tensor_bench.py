"""`slipstream bench --kind kserve` and `--kind in-process`, from the options to the report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import uvloop

from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.earlier_outcome import compared, read_outcome
from slipstream.cluster.tools.bench.load.answer_slos import Slos, is_slo
from slipstream.cluster.tools.bench.load.level_options import extent_of, levels_of
from slipstream.cluster.tools.bench.outcome_files import settings_of, write
from slipstream.cluster.tools.bench.tensors.clients.http_client import HttpInferClient
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferClient
from slipstream.cluster.tools.bench.tensors.data_file import streams_of_file
from slipstream.cluster.tools.bench.tensors.model_facts import TensorModelFacts
from slipstream.cluster.tools.bench.tensors.shared_inputs import in_shared_memory
from slipstream.cluster.tools.bench.tensors.tensor_data import InferSource, Inputs, MadeData, batched
from slipstream.cluster.tools.bench.tensors.tensor_levels import (
    TensorRun,
    TensorStage,
    run_tensor_stages,
    tensor_measures,
)
from slipstream.cluster.tools.bench.tensors.tensor_outcome import TensorOutcome
from slipstream.router.process.open_files import allow_all_files

PROTOCOLS = ("http", "grpc")
SEQUENCE_LENGTH = 20
INTERRUPTED = 130


def run_tensor_bench(options: dict[str, Any]) -> int:
    """Returns the exit code. Raises BenchError, or UsageError for options that do not go together."""
    places = [word for word in options["where"] if not is_slo(word)]
    slos = Slos.parse([*options["slos"], *(word for word in options["where"] if is_slo(word))])
    if len(places) != 1:
        raise click.UsageError("give one URL" if options["kind"] == "kserve" else "give one folder with a repository")
    if len(options["models"]) != 1:
        raise click.UsageError("--model: give the name of one model")
    earlier = read_outcome(options["earlier_file"]) if options["earlier_file"] is not None else None
    if options["kind"] == "in-process" and not Path(places[0]).is_dir() and "://" not in places[0]:
        raise BenchError(f"{places[0]}: is no folder with a repository")
    levels_asked = levels_of(options)  # raises before a server is asked
    allow_all_files()
    runs = uvloop.run(measured(places[0], options))
    if not runs:
        raise BenchError("interrupted before anything was measured")
    levels = [tensor_measures(run, slos) for run in runs]
    outcome = TensorOutcome(
        place=places[0],
        model=options["models"][0],
        settings=settings_of(options),
        slos=slos,
        runs=runs,
        levels=levels,
        compared=compared(earlier, levels, options["earlier_file"]) if earlier is not None else None,
    )
    report = outcome.report()
    click.echo(report.text(shutil.get_terminal_size((120, 24)).columns), nl=False)
    write(outcome, report, options)
    if any(one.run.was_interrupted for one in runs):
        return INTERRUPTED
    is_whole = len(runs) == len(levels_asked) and not any(one.run.broke_off for one in runs)
    return 0 if is_whole and any(answer.is_good for one in runs for answer in one.run.answers) else 1


async def measured(place: str, options: Mapping[str, Any]) -> list[TensorRun]:
    shapes = shapes_of(options["shapes"])
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(client_of(place, options))
        model = TensorModelFacts.of_config(await client.config())
        streams = batched(streams_of(model, options, shapes), model, options["batch_size"])
        if options["shared_memory"] != "none":
            streams = await opened.enter_async_context(in_shared_memory(client, streams))
        source = InferSource(streams, sequence_length_of(model, options))
        stages = [
            TensorStage(level, extent_of(level, options), source, options["batch_size"]) for level in levels_of(options)
        ]
        return await run_tensor_stages(client, model, stages, options["seed"], sys.stderr)


def streams_of(
    model: TensorModelFacts, options: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> list[list[Inputs]]:
    """Requests of one row. Raises BenchError."""
    if options["input_file"] is not None:
        return streams_of_file(options["input_file"], model, shapes)
    made = MadeData(options["zero_data"], options["string_length"], shapes)
    return [made.inputs(model, options["seed"])]


def sequence_length_of(model: TensorModelFacts, options: Mapping[str, Any]) -> int | None:
    """None: the model has no sequences. 0: as long as those of the file. Raises BenchError."""
    given: int | None = options["sequence_length"]
    if not model.has_sequences:
        if given is not None:
            raise BenchError(f"--sequence-length: {model.name} has no sequence_batching")
        return None
    return given or (0 if options["input_file"] is not None else SEQUENCE_LENGTH)


def shapes_of(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """`NAME:2,3`. Raises UsageError."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shapes[name] = (-1,)
        if not name or any(size < 0 for size in shapes[name]):
            raise click.UsageError(f"--shape: expected INPUT:SIZE,..., got {text!r}")
    return shapes


@asynccontextmanager
async def client_of(place: str, options: Mapping[str, Any]) -> AsyncIterator[InferClient]:
    """Raises BenchError."""
    if options["kind"] == "kserve":
        client = network_client(place, options)
        try:
            yield client
        finally:
            await client.close()
        return
    from slipstream.cluster.tools.bench.tensors.clients.served_folder import served_folder  # needs the extra `kserve`

    async with served_folder(place, options["models"][0], options["model_version"], options["timeout"]) as within:
        yield within


def network_client(place: str, options: Mapping[str, Any]) -> InferClient:
    """By `grpc://HOST:PORT`, or `--protocol`. Raises BenchError."""
    scheme, separator, rest = place.partition("://")
    is_grpc = options["protocol"] == "grpc" or (options["protocol"] is None and scheme in ("grpc", "grpcs"))
    url = place if scheme not in ("grpc", "grpcs") or not separator else f"http{scheme.removeprefix('grpc')}://{rest}"
    headers = tuple(header_of(text) for text in options["headers"])
    target = replace(Target.of_url(url), key=options["key"], headers=headers, check_certificate=not options["insecure"])
    of_model = (options["models"][0], options["model_version"], options["timeout"])
    if not is_grpc:
        return HttpInferClient(target, *of_model)
    from slipstream.cluster.tools.bench.tensors.clients.grpc_client import GrpcInferClient  # needs the extra `kserve`

    return GrpcInferClient(target, *of_model)


def header_of(text: str) -> tuple[str, str]:
    """Raises UsageError."""
    name, separator, value = text.partition(":")
    if not separator or not name.strip() or not text.isascii() or "\n" in text or "\r" in text:
        raise click.UsageError(f"--header: expected NAME:VALUE, got {text!r}")
    return name.strip(), value.strip()
