"""Runs levels of load against a tensor model, with what its server counts meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.load.answer_slos import Slos
from slipstream.cluster.tools.bench.load.bench_stages import SEED_STRIDE, failure_of, stopped_by_ctrl_c
from slipstream.cluster.tools.bench.load.level_run import LevelRun, run_level, warm_up
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel
from slipstream.cluster.tools.bench.load.measures import Measures, Metric, errors_of, in_ms, statistics
from slipstream.cluster.tools.bench.load.progress_line import shown_progress
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferClient
from slipstream.cluster.tools.bench.tensors.model_facts import TensorModelFacts
from slipstream.cluster.tools.bench.tensors.server_counts import ServerCounts
from slipstream.cluster.tools.bench.tensors.tensor_data import InferSource


@dataclass(frozen=True, slots=True)
class TensorStage:
    """`batch_size` are the rows of each request."""

    level: LoadLevel
    extent: Extent
    source: InferSource
    batch_size: int = 1


@dataclass(slots=True)
class TensorRun:
    """A level. `counts` are the server's, by model: the one that was asked, and those of an ensemble's steps."""

    run: LevelRun
    batch_size: int
    counts: dict[str, ServerCounts] = field(default_factory=dict)


async def run_tensor_stages(
    client: InferClient, model: TensorModelFacts, stages: Sequence[TensorStage], seed: int, terminal: TextIO
) -> list[TensorRun]:
    """Runs the levels, or those until Ctrl-C or the end of the server. Raises BenchError if all warm-up requests fail
    before anything was measured."""
    runs: list[TensorRun] = []
    stop = asyncio.Event()
    with stopped_by_ctrl_c(stop):
        for number, stage in enumerate(stages):
            if stop.is_set() or (runs and runs[-1].run.broke_off):
                break
            if failure := await warmed_up(client, stage, seed - 1 - number, stop):
                if not runs:
                    raise BenchError(failure)
                runs.append(TensorRun(LevelRun(stage.level, broke_off=failure), stage.batch_size))
            elif not stop.is_set():
                runs.append(await run_stage(client, model, stage, seed + SEED_STRIDE * number, stop, terminal))
    return runs


async def warmed_up(client: InferClient, stage: TensorStage, seed: int, stop: asyncio.Event) -> str:
    """Why all requests of the warm-up failed, or ""."""
    if not stage.extent.num_warm_up:
        return ""
    return failure_of(await warm_up(client, stage.source.conversations(seed), stage.level, stage.extent, stop))


async def run_stage(
    client: InferClient, model: TensorModelFacts, stage: TensorStage, seed: int, stop: asyncio.Event, terminal: TextIO
) -> TensorRun:
    gc.collect()
    gc.freeze()
    made = TensorRun(LevelRun(stage.level), stage.batch_size)
    before = await counts_of(client, model)
    with shown_progress(made.run, stage.extent, terminal):
        await run_level(client, stage.source.conversations(seed), stage.level, stage.extent, stop, seed, made.run)
    if not made.run.broke_off:
        after = await counts_of(client, model)
        made.counts = {name: after[name].minus(before[name]) for name in after if name in before}
    return made


async def counts_of(client: InferClient, model: TensorModelFacts) -> dict[str, ServerCounts]:
    """None if the server does not say."""
    try:
        return {name: ServerCounts.of(await client.statistics(name)) for name in (model.name, *model.steps)}
    except BenchError:
        return {}


def tensor_measures(tensor_run: TensorRun, slos: Slos) -> Measures:
    """Rates are those of good answers, from the first request to the last of them."""
    run = tensor_run.run
    good = [answer for answer in run.answers if answer.is_good]
    sampled = {"request_latency": in_ms(answer.latency_s for answer in good)}
    if any(answer.num_chunks > 1 for answer in good):
        sampled["time_to_first_response"] = in_ms(answer.ttft_s for answer in good)
        sampled["inter_response_latency"] = in_ms(answer.itl_s for answer in good)
        sampled["responses_per_request"] = [float(answer.num_chunks) for answer in good]
    metrics = {name: Metric(name, statistics(values)) for name, values in sampled.items() if values}
    single: dict[str, float] = {}
    if good:
        span_s = max(answer.ended_s for answer in good) - min(answer.begun_s for answer in run.answers)
        single["request_throughput"] = len(good) / span_s
        single["inference_throughput"] = len(good) * tensor_run.batch_size / span_s
        single["benchmark_duration"] = span_s
        if slos:
            num_kept = sum(map(slos.is_kept, good))
            single |= {"goodput": num_kept / span_s, "good_request_share": num_kept / len(run.answers)}
    single |= {"request_count": len(good), "error_count": len(run.answers) - len(good)}
    single |= {"unfinished_count": run.num_unfinished} if run.num_unfinished else {}
    single |= {"late_count": run.num_late} if run.num_late else {}
    metrics |= {name: Metric(name, {"avg": value}) for name, value in single.items()}
    return Measures(run.level, metrics, errors_of(run.answers), run.was_interrupted)
