"""Measures settings of a model that is served in this process, until the search is done or the time is up."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from statistics import median

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel
from slipstream.cluster.tools.bench.tensors.clients.in_process_client import InProcessInferClient
from slipstream.cluster.tools.bench.tensors.model_facts import TensorModelFacts
from slipstream.cluster.tools.bench.tensors.tensor_data import InferSource
from slipstream.cluster.tools.bench.tensors.tensor_levels import TensorStage, run_stage
from slipstream.cluster.tools.plan.tensors.hill_climb import climb
from slipstream.cluster.tools.plan.tensors.setting_trial import GAIN, SettingTrial, TrialPoint
from slipstream.cluster.tools.plan.tensors.tensor_settings import SettingSpace, TensorSettings

MIN_WINDOW_S = 0.5
MAX_WINDOW_S = 3.0
REQUESTS_A_WINDOW = 100  # so that there is a p99
FINAL_SHARE = 0.25  # of the time, for the present and the best settings in turns
FINAL_ROUNDS = 3
MAX_CONCURRENCY = 512


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """`trials` are in the order of the search. `present` and `best` were measured again in turns; they are the same if
    nothing is better than the present settings. `is_complete` False: the time was up."""

    trials: list[SettingTrial]
    present: SettingTrial
    best: SettingTrial
    is_complete: bool

    @property
    def is_gain(self) -> bool:
        """Whether to use the best settings instead of the present ones."""
        return self.best.is_within and self.best.is_better_than(self.present)


class MeasuredSearch:
    """`config` is complete; `latency_ms` limits the p99. `note` is called with what is measured next."""

    def __init__(
        self,
        client: InProcessInferClient,
        config: ModelConfig,
        source: InferSource,
        latency_ms: float,
        note: Callable[[TensorSettings], None],
    ) -> None:
        self._client = client
        self._config = config
        self._facts = TensorModelFacts(config.name, ())
        self._source = source
        self._latency_ms = latency_ms
        self._note = note
        self._loaded: TensorSettings | None = TensorSettings.of_config(config)
        self._concurrency = 1  # that was best so far

    async def run(self, space: SettingSpace, seconds: float) -> SearchOutcome:
        begun_s = time.monotonic()
        present = TensorSettings.of_config(self._config)
        trials: list[SettingTrial] = []
        best: SettingTrial | None = None
        search: Generator[TensorSettings, SettingTrial, None] = climb(present, space)
        settings: TensorSettings | None = next(search)
        longest_s = 0.0
        while settings is not None:
            left_s = seconds * (1 - FINAL_SHARE) - (time.monotonic() - begun_s)
            if trials and left_s < longest_s:
                break
            trial_begun_s = time.monotonic()
            trial = await self._measured(settings)
            longest_s = max(longest_s, time.monotonic() - trial_begun_s)
            trials.append(trial)
            if best is None or trial.is_better_than(best):
                best = trial
                self._concurrency = trial.best.concurrency if trial.best is not None else 1
            try:
                settings = search.send(trial)
            except StopIteration:
                settings = None
        assert best is not None
        if best is trials[0]:
            return SearchOutcome(trials, best, best, is_complete=settings is None)
        window_s = min(max(seconds * FINAL_SHARE / (2 * FINAL_ROUNDS), MIN_WINDOW_S), 2 * MAX_WINDOW_S)
        again = await self._in_turns(trials[0], best, window_s, begun_s + seconds)
        return SearchOutcome(trials, *again, is_complete=settings is None)

    async def _measured(self, settings: TensorSettings) -> SettingTrial:
        """From the number of clients that was best so far: more of them while that gains and keeps the limit, or
        fewer until it is kept."""
        trial = SettingTrial(settings, self._latency_ms)
        self._note(settings)
        try:
            await self._load(settings)
        except BenchError as error:
            trial.failure = str(error)
            return trial
        await self._window(self._concurrency, MIN_WINDOW_S / 2)  # the first requests of new instances are slow
        concurrency = self._concurrency
        first = await self._point(concurrency)
        trial.points.append(first)
        before = first
        while trial.keeps_limit(before) and concurrency < MAX_CONCURRENCY:
            concurrency *= 2
            point = await self._point(concurrency)
            trial.points.append(point)
            if point.requests_s < before.requests_s * (1 + GAIN):
                break
            before = point
        if trial.is_within and not trial.keeps_limit(before) and concurrency > 2:  # between the last two
            trial.points.append(await self._point(concurrency * 3 // 4))
        concurrency = first.concurrency
        while not trial.is_within and concurrency > 1:
            concurrency //= 2
            trial.points.append(await self._point(concurrency))
        return trial

    async def _in_turns(
        self, present: SettingTrial, best: SettingTrial, window_s: float, end_s: float
    ) -> tuple[SettingTrial, SettingTrial]:
        """Both again, each with its best number of clients, and with half of them if the limit was not kept: the
        medians of the rounds. After `end_s` no round begins but the first."""
        rounds: dict[int, dict[int, list[TrialPoint]]] = {0: {}, 1: {}}
        for number_of_round in range(FINAL_ROUNDS):
            if number_of_round and time.monotonic() >= end_s:
                break
            for number, trial in enumerate((present, best)):
                if trial.best is None:
                    continue
                self._note(trial.settings)
                await self._load(trial.settings)
                await self._window(trial.best.concurrency, MIN_WINDOW_S / 2)
                for concurrency in (trial.best.concurrency, trial.best.concurrency // 2):
                    point = await self._window(max(concurrency, 1), window_s)
                    rounds[number].setdefault(point.concurrency, []).append(point)
                    if trial.keeps_limit(point):
                        break
        first, second = (
            SettingTrial(
                trial.settings, self._latency_ms, list(map(median_point, rounds[number].values())), trial.failure
            )
            for number, trial in enumerate((present, best))
        )
        return first, second

    async def _load(self, settings: TensorSettings) -> None:
        if settings == self._loaded:
            return
        config = ModelConfig()
        config.CopyFrom(self._config)
        settings.set_in(config)
        self._loaded = None
        await self._client.reload(json_format.MessageToJson(config, preserving_proto_field_name=True))
        self._loaded = settings

    async def _point(self, concurrency: int) -> TrialPoint:
        """Of so many requests that there is a p99. If that is over the limit and half of the requests are well within
        it, it is measured once more, as something else may have used the machine."""
        point = await self._window(concurrency, MIN_WINDOW_S)
        window_s = min(max(REQUESTS_A_WINDOW / max(point.requests_s, 1.0), MIN_WINDOW_S), MAX_WINDOW_S)
        if window_s > 2 * MIN_WINDOW_S:
            point = await self._window(concurrency, window_s)
        if point.p99_ms > self._latency_ms and point.p50_ms < self._latency_ms / 2:
            again = await self._window(concurrency, window_s)
            point = min(point, again, key=lambda one: one.p99_ms)
        return point

    async def _window(self, concurrency: int, window_s: float) -> TrialPoint:
        extent = Extent(duration_s=window_s, timeout_s=30.0)
        stage = TensorStage(LoadLevel(concurrency), extent, self._source)
        run = await run_stage(self._client, self._facts, stage, 0, asyncio.Event(), io.StringIO())
        return TrialPoint.of(run, concurrency, self._facts.name)


def median_point(points: list[TrialPoint]) -> TrialPoint:
    """Each figure is the median of its own; what the server counted is that of the middle throughput."""
    middle = sorted(points, key=lambda point: point.requests_s)[len(points) // 2]
    p50_ms, p99_ms = (median(getattr(point, name) for point in points) for name in ("p50_ms", "p99_ms"))
    return replace(middle, p50_ms=p50_ms, p99_ms=p99_ms, num_errors=sum(point.num_errors for point in points))
