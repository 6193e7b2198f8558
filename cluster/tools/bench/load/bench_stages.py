"""Runs all levels one after the other, over the same connections, until the last one or Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.client.conversation import Source
from slipstream.cluster.tools.bench.client.model_choice import ForModels
from slipstream.cluster.tools.bench.client.prompt_text import PromptWords
from slipstream.cluster.tools.bench.client.request_body import RequestBody
from slipstream.cluster.tools.bench.client.request_sender import RequestSender
from slipstream.cluster.tools.bench.load.level_run import LevelRun, run_level, warm_up
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel
from slipstream.cluster.tools.bench.load.progress_line import shown_progress

SEED_STRIDE = 7919  # between levels, so that prompts of one level are not prefixes of those of the next


@dataclass(frozen=True, slots=True)
class BenchStage:
    """One level and the conversations for it."""

    level: LoadLevel
    extent: Extent
    source: Source | ForModels


async def run_stages(
    stages: Sequence[BenchStage], form: RequestBody, words: PromptWords, seed: int, terminal: TextIO
) -> list[LevelRun]:
    """Runs the levels, and returns their results, or those so far if Ctrl-C or a failing server ends it early. Raises
    BenchError if all warm-up requests fail before anything was measured."""
    runs: list[LevelRun] = []
    stop = asyncio.Event()
    with stopped_by_ctrl_c(stop):
        for number, stage in enumerate(stages):
            if stop.is_set():
                break
            sender = RequestSender(form.target, stage.extent.timeout_s, form)
            try:
                if stage.extent.num_warm_up:
                    conversations = stage.source.conversations(words, seed - 1 - number)
                    warm = await warm_up(sender, conversations, stage.level, stage.extent, stop)
                    if stop.is_set():
                        break
                    if failure := failure_of(warm):
                        if not runs:
                            raise BenchError(failure)
                        runs.append(LevelRun(stage.level, broke_off=failure))
                        break
                gc.collect()
                gc.freeze()  # keeps the garbage collector from scanning everything during the measurement
                conversations = stage.source.conversations(words, seed + SEED_STRIDE * number)
                run = LevelRun(stage.level)
                runs.append(run)
                with shown_progress(run, stage.extent, terminal):
                    await run_level(sender, conversations, stage.level, stage.extent, stop, seed + number, run)
                if run.broke_off:
                    break
            finally:
                sender.close()
    return runs


def failure_of(warm_up: LevelRun) -> str:
    """The reason why all warm-up requests failed; empty if one succeeded."""
    if not warm_up.answers or warm_up.num_errors < len(warm_up.answers):
        return ""
    first = warm_up.answers[0]
    later = f" (Retry-After: {first.retry_after_s:g} s)" if first.retry_after_s is not None else ""
    return f"no request of the warm-up succeeded: {first.kind}: {first.error}{later}"


@contextmanager
def stopped_by_ctrl_c(stop: asyncio.Event) -> Iterator[None]:
    """While the context is open, the first Ctrl-C sets `stop`; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, first)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
