"""The command `slipstream bench`."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
import uvloop
from click.core import ParameterSource

from slipstream.cluster.state.cluster_status import KEY_VARIABLE
from slipstream.cluster.terminal import console
from slipstream.cluster.tools.bench.bench_outcome import Outcome
from slipstream.cluster.tools.bench.client.bench_target import PATHS, BenchError, Target
from slipstream.cluster.tools.bench.client.conversation import Lengths, PromptFile, Replay, Source, Synthetic
from slipstream.cluster.tools.bench.client.model_choice import ForModels, ModelSelection
from slipstream.cluster.tools.bench.client.request_body import RequestBody
from slipstream.cluster.tools.bench.client.server_facts import ServerFacts, look_at
from slipstream.cluster.tools.bench.earlier_outcome import compared, read_outcome
from slipstream.cluster.tools.bench.load.answer_slos import Slos, is_slo
from slipstream.cluster.tools.bench.load.bench_stages import BenchStage, run_stages
from slipstream.cluster.tools.bench.load.level_options import extent_of, levels_of
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.load.load_level import ArrivalKind
from slipstream.cluster.tools.bench.load.measures import measures, measures_by_model
from slipstream.cluster.tools.bench.outcome_files import settings_of, write
from slipstream.cluster.tools.bench.outcome_report import report_of
from slipstream.cluster.tools.bench.profiling.cluster_target import run_profile, running_cluster
from slipstream.cluster.tools.bench.tensor_bench import PROTOCOLS, run_tensor_bench
from slipstream.cluster.tools.workload.arrival import TraceError
from slipstream.cluster.tools.workload.workload import open_workload
from slipstream.router.process.open_files import allow_all_files

INTERRUPTED = 130
EXISTING = click.Path(exists=True, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
KINDS = ("openai", "kserve", "in-process")
FOR_TENSORS = (
    *("protocol", "model_version", "batch_size", "shapes", "zero_data", "string_length", "shared_memory"),
    "sequence_length",
)
FOR_LANGUAGE_MODELS = (
    *("name", "endpoint", "model_selection", "extra", "tokenizer", "isl", "isl_stddev", "osl", "osl_stddev"),
    *("prefix_tokens", "num_prefixes", "turns", "turns_stddev", "workload", "speed", "no_stream", "no_ignore_eos"),
    "profile_file",
)


@click.command("bench")
@click.argument("where", metavar="[URL]", nargs=-1)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="openai",
    show_default=True,
    help="kserve: tensors over HTTP or gRPC; in-process: tensors to a repository, which is served in this process.",
)
@click.option("--name", metavar="CLUSTER", help="A cluster on this machine, instead of a URL.")
@click.option("--endpoint", type=click.Choice(list(PATHS)), default=None, help="[default: chat]")
@click.option(
    "--model", "models", multiple=True, help="May be given several times. [default: the first one that the server has]"
)
@click.option(
    "--model-selection",
    type=click.Choice(get_args(ModelSelection)),
    default="round_robin",
    show_default=True,
    help="How conversations choose among several models.",
)
@click.option("--key", envvar=KEY_VARIABLE, help=f"API key [env: {KEY_VARIABLE}].")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Sent with each request.")
@click.option("--extra", metavar="JSON", default="{}", help="Further fields of each request's body.")
@click.option("--insecure", is_flag=True, help="Accept any TLS certificate.")
@click.option("--tokenizer", type=EXISTING, help="Directory of the model, for prompts of exact length.")
@click.option("--isl", type=click.FloatRange(1), default=512, show_default=True, help="Prompt tokens, mean.")
@click.option("--isl-stddev", type=click.FloatRange(0), default=0.0)
@click.option("--osl", type=click.FloatRange(1), default=128, show_default=True, help="Output tokens, mean.")
@click.option("--osl-stddev", type=click.FloatRange(0), default=0.0)
@click.option(
    "--prefix-tokens", type=click.IntRange(0), default=0, help="Tokens of each prompt that are shared with others."
)
@click.option("--num-prefixes", type=click.IntRange(1), default=1, help="How many different shared prefixes there are.")
@click.option("--turns", type=click.FloatRange(1), default=1, help="Turns of a conversation, mean.")
@click.option("--turns-stddev", type=click.FloatRange(0), default=0.0)
@click.option("--workload", metavar="TRACE", help="Use a trace, or a mix of requests (docs/reference/workloads.md).")
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, help="Speed of the trace.")
@click.option(
    "--input", "input_file", type=EXISTING, help="Use a file: JSON lines with `prompt` or `messages`, or tensors."
)
@click.option("--concurrency", metavar="N[,N...]", help="Requests at a time; several values: a sweep.")
@click.option("--request-rate", metavar="R[,R...]", help="Requests per second; several values: a sweep.")
@click.option("--arrivals", type=click.Choice(get_args(ArrivalKind)), default="poisson", show_default=True)
@click.option("--burstiness", type=float, default=1.0, help="Of gamma arrivals; 1: Poisson; less: bursty.")
@click.option("--request-count", type=click.IntRange(1), help="Requests of each level.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="Seconds of each level.")
@click.option("--warm-up", type=click.IntRange(0), default=4, show_default=True, help="Requests before each level.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True, help="Seconds.")
@click.option(
    "--goodput", "slos", multiple=True, metavar="METRIC:MS...", help="Limits of a good answer, as in ttft:500 itl:50."
)
@click.option("--protocol", type=click.Choice(PROTOCOLS), help="Of --kind kserve. [default: http, or as the URL says]")
@click.option("--model-version", default="", help="Of a tensor model. [default: the highest]")
@click.option("--batch-size", type=click.IntRange(1), default=1, help="Rows of each request with tensors.")
@click.option("--shape", "shapes", multiple=True, metavar="INPUT:SIZE,...", help="Of an input whose dims may vary.")
@click.option("--zero-data", is_flag=True, help="Tensors of zeros instead of random ones.")
@click.option("--string-length", type=click.IntRange(0), default=128, help="Letters of random elements of BYTES.")
@click.option("--shared-memory", type=click.Choice(("none", "system")), default="none", help="For inputs.")
@click.option("--sequence-length", type=click.IntRange(1), help="Requests of a sequence. [default: 20, or the file's]")
@click.option("--no-stream", is_flag=True, help="Ask for answers in one piece: no TTFT, no ITL.")
@click.option("--no-ignore-eos", is_flag=True, help="Do not send ignore_eos, which some servers refuse.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", type=OUTPUT)
@click.option("--csv", "csv_file", type=OUTPUT)
@click.option("--html", "html_file", type=OUTPUT, help="A page with plots.")
@click.option("--records", "records_file", type=OUTPUT, help="One line of JSON for each request.")
@click.option("--compare", "earlier_file", type=EXISTING, help="Compare with the JSON of an earlier run.")
@click.option(
    "--profile", "profile_file", type=OUTPUT, help="Profile a Slipstream cluster for `sim` and `plan` instead."
)
def bench_command(**options: Any) -> None:
    """Measure any server that speaks the OpenAI API, or KServe's for tensors, or a repository of tensor models.

    The tables are those of GenAI-Perf and AIPerf; docs/how-to/bench.md has examples. Ctrl-C ends it, with a report so
    far.
    """
    is_of_tensors = options["kind"] != "openai"
    try:
        refuse_other_options(is_of_tensors)
        code = run_tensor_bench(options) if is_of_tensors else run_bench(options)
    except (BenchError, TraceError) as error:
        console.error(str(error))
        code = 1
    except KeyboardInterrupt:  # before the measurement, which handles Ctrl-C itself
        code = not_begun()
    sys.exit(code)


def refuse_other_options(is_of_tensors: bool) -> None:
    """Raises UsageError for options that have no effect."""
    context = click.get_current_context()
    for name in FOR_LANGUAGE_MODELS if is_of_tensors else FOR_TENSORS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            (option,) = (one.opts[0] for one in context.command.params if one.name == name)
            wanted = "openai" if is_of_tensors else "kserve or in-process"
            raise click.UsageError(f"{option} needs --kind {wanted}")


def run_bench(options: dict[str, Any]) -> int:
    """Runs the benchmark and returns the exit code. Raises BenchError, TraceError, or UsageError for options that do
    not go together."""
    places = [word for word in options["where"] if not is_slo(word)]
    slos = Slos.parse([*options["slos"], *(word for word in options["where"] if is_slo(word))])
    if len(places) > 1 or bool(places) == (options["name"] is not None):
        raise click.UsageError("give one URL, or --name CLUSTER")
    check_options(options)
    cluster = running_cluster(options["name"]) if options["name"] is not None else None
    target = with_options(cluster.target if cluster is not None else Target.of_url(places[0]), options)
    model_dir = options["tokenizer"] or (cluster.model_dir if cluster is not None else None)
    earlier = read_outcome(options["earlier_file"]) if options["earlier_file"] is not None else None
    models: tuple[str, ...] = options["models"]
    server = look_at(target, model_dir, models[1:])
    form = RequestBody(server.target, not options["no_stream"], not options["no_ignore_eos"])
    if options["profile_file"] is not None:
        return run_profile(server, form, cluster, model_dir, options["profile_file"], options["seed"])
    source = source_of(options, server)
    asked = ForModels(source, models, options["model_selection"]) if len(models) > 1 else source
    length = len(source.workload) if isinstance(source, Replay) else None
    levels_asked = levels_of(options, is_trace=length is not None)
    stages = [BenchStage(level, extent_of(level, options, length), asked) for level in levels_asked]
    allow_all_files()  # at a given rate, requests are sent even if the server hangs
    runs = uvloop.run(run_stages(stages, form, server.words, options["seed"], sys.stderr))
    if not runs:
        return not_begun()
    levels = [measures(run, slos) for run in runs]
    outcome = Outcome(
        url=server.target.url,
        model=", ".join(models) or server.target.model,
        settings=settings_of(options),
        slos=slos,
        levels=levels,
        runs=runs,
        notes=notes_on(runs, source, server, form.is_stream),
        by_model=[of_model for run in runs for of_model in measures_by_model(run, slos)],
        compared=compared(earlier, levels, options["earlier_file"]) if earlier is not None else None,
    )
    report = report_of(outcome)
    click.echo(report.text(shutil.get_terminal_size((120, 24)).columns), nl=False)
    write(outcome, report, options)  # after the report, so that a file that cannot be written loses nothing
    if any(run.was_interrupted for run in runs):
        return INTERRUPTED
    if any(run.broke_off for run in runs):
        return 1
    return 0 if any(answer.is_good for run in runs for answer in run.answers) else 1


def check_options(options: dict[str, Any]) -> None:
    """Raises UsageError for a value that is no number, and for options that exclude each other."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise click.UsageError(f"--{name.replace('_', '-')}: a finite number was expected, got {value}")
    if options["concurrency"] and options["request_rate"] and "," in options["concurrency"]:
        raise click.UsageError("with --request-rate, --concurrency is a limit, one number")
    if options["profile_file"] is not None and len(options["models"]) > 1:
        raise click.UsageError("--profile: a profile is of one model, give --model once")
    if options["workload"] and options["input_file"]:
        raise click.UsageError("give --workload or --input, not both")


def not_begun() -> int:
    console.error("interrupted before anything was measured")
    return INTERRUPTED


def with_options(target: Target, options: dict[str, Any]) -> Target:
    try:
        extra = json.loads(options["extra"])
    except ValueError as error:
        raise click.UsageError(f"--extra: not JSON: {error}") from None
    if not isinstance(extra, dict):
        raise click.UsageError(f"--extra: an object was expected, got {options['extra']}")
    headers = []
    for header in options["headers"]:
        name, separator, value = header.partition(":")
        if not separator or not name.strip() or "\n" in header or "\r" in header:
            raise click.UsageError(f"--header: expected NAME:VALUE, got {header!r}")
        if not is_latin(header):
            raise click.UsageError(f"--header: a header has only characters of Latin-1, got {header!r}")
        headers.append((name.strip(), value.strip()))
    if options["key"] and not is_latin(options["key"]):
        raise click.UsageError("--key: a key has only characters of Latin-1")
    return replace(
        target,
        model=options["models"][0] if options["models"] else "",
        kind=options["endpoint"] or target.kind,
        key=options["key"],
        headers=tuple(headers),
        extra=extra,
        check_certificate=target.check_certificate and not options["insecure"],
    )


def is_latin(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def source_of(options: dict[str, Any], server: ServerFacts) -> Source:
    if options["input_file"] is not None:
        return PromptFile.read(options["input_file"], round(options["osl"]))
    if options["workload"] is not None:
        try:
            workload = open_workload(options["workload"], options["request_count"], options["speed"], options["seed"])
        except ValueError as error:
            raise BenchError(f"--workload: {error}") from None
        return Replay(workload, server.max_model_len)
    return Synthetic(
        Lengths(options["isl"], options["isl_stddev"]),
        Lengths(options["osl"], options["osl_stddev"]),
        Lengths(options["turns"], options["turns_stddev"]),
        options["prefix_tokens"],
        options["num_prefixes"],
    )


def notes_on(runs: Sequence[LevelRun], source: Source, server: ServerFacts, is_stream: bool) -> list[str]:
    """Notes for the report on what could otherwise mislead its reader."""
    notes = []
    if any(run.was_interrupted for run in runs):
        notes.append("Interrupted: what had ended by then.")
    notes += [f"{run.level.name} broke off: {run.broke_off}" for run in runs if run.broke_off]
    good = [answer for run in runs for answer in run.answers if answer.is_good]
    if any(answer.num_output_tokens is None for answer in good):
        notes.append("The server does not count tokens: each chunk of a stream counts as one.")
    num_whole = sum(not answer.first_s for answer in good)
    if num_whole and is_stream:
        notes.append(f"{num_whole} of {len(good)} answers were no stream: they have no TTFT and no ITL.")
    short = sum(answer.wanted_tokens is not None and answer.num_tokens != answer.wanted_tokens for answer in good)
    if short:
        notes.append(f"{short} of {len(good)} answers are not as long as they should have been.")
    if not server.words.is_exact and not isinstance(source, PromptFile):
        notes.append("Prompt lengths are approximate; --tokenizer DIRECTORY makes them exact.")
    if isinstance(source, Replay) and source.num_cut:
        notes.append(
            f"{source.num_cut} requests of the workload were cut to the {server.max_model_len} tokens of the model."
        )
    late = sum(run.num_late for run in runs)
    if late:
        notes.append(f"{late} requests began over 10 ms late: the client was busy, or at its limit of concurrency.")
    return notes
