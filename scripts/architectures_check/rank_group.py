"""The ranks that compute a model: one in this process, or two in processes of their own; their pages as bytes."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.plan.step_plan import PageSend, SampledTokens, SamplingRow, StepPlan
from slipstream.workers.group.group_messages import Execute
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

Bytes = NDArray[np.uint8]
RANK_TIMEOUT_S = 120.0


class RankFailedError(RuntimeError):
    """A rank could not do what it was asked for; `is_refusal` if it refused the model."""

    def __init__(self, text: str, is_refusal: bool) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class Ranks(Protocol):
    """An `Executor` of all ranks of a group, which notes the sends of its plans."""

    sends: list[PageSend]

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens: ...

    def read(self, page_ids: Sequence[int]) -> Bytes:
        """[layers, pages, units of all ranks, unit_bytes]"""

    def write(self, page_ids: Sequence[int], pages: Bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """A group of one."""

    runner: ModelRunner
    sends: list[PageSend]

    @staticmethod
    def load(model_dir: Path, config: EngineConfig) -> LocalRanks:
        assert config.num_pages is not None
        return LocalRanks(build_runner(model_dir, config, config.num_pages), [])

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        self.sends.extend(plan.sends)
        return self.runner.execute(plan, sampling)

    def read(self, page_ids: Sequence[int]) -> Bytes:
        return self.runner.page_bytes()[:, list(page_ids)].copy()

    def write(self, page_ids: Sequence[int], pages: Bytes) -> None:
        self.runner.page_bytes()[:, list(page_ids)] = pages


class ForkedRanks:
    """A group of several ranks, each in a child of this process. To be forked before this process computes anything."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sends: list[PageSend] = []
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = multiprocessing.get_context("fork")
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(rank, size, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def load(self, model_dir: Path, config: EngineConfig) -> None:
        """Raises RankFailedError."""
        self._ask_all(("load", model_dir, config))

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        self.sends.extend(plan.sends)
        plain = StepPlan(plan.arrays, plan.greedy)
        answers = self._ask_all(("execute", Execute.of(plain), tuple(sampling)))
        sampled: SampledTokens = answers[0]
        return sampled

    def read(self, page_ids: Sequence[int]) -> Bytes:
        return np.concatenate(self._ask_all(("read", tuple(page_ids))), axis=2)

    def write(self, page_ids: Sequence[int], pages: Bytes) -> None:
        parts = np.split(pages, self.size, axis=2)
        for pipe, part in zip(self._pipes, parts, strict=True):
            pipe.send(("write", tuple(page_ids), part))
        self._answers()

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join(5.0)

    def _ask_all(self, command: tuple[Any, ...]) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(command)
        return self._answers()

    def _answers(self) -> list[Any]:
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(RANK_TIMEOUT_S):
                raise RankFailedError(f"rank {rank} does not answer", False)
            try:
                kind, value = pipe.recv()
            except EOFError:
                raise RankFailedError(f"rank {rank} has died", False) from None
            answers.append((kind, value))
        for kind, value in answers:
            if kind != "ok":
                raise RankFailedError(value, kind == "refused")
        return [value for _, value in answers]


def _rank_main(rank: int, size: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    worker = _Rank(rank, size)
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", worker.do(*command)))
        except ValueError as error:  # ModelError and EngineConfigError among them
            pipe.send(("refused" if command[0] == "load" else "error", str(error)))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            pipe.send(("error", text))


class _Rank:
    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._runner: ModelRunner | None = None

    def do(self, command: str, *arguments: Any) -> Any:
        if command == "load":
            return self._load(*arguments)
        assert self._runner is not None
        if command == "execute":
            execute, sampling = arguments
            return self._runner.execute(execute.plan, sampling)
        if command == "read":
            return self._runner.page_bytes()[:, list(arguments[0])].copy()
        self._runner.page_bytes()[:, list(arguments[0])] = arguments[1]
        return None

    def _load(self, model_dir: Path, config: EngineConfig) -> None:
        assert config.num_pages is not None
        if not dist.is_initialized():
            meeting = f"file://{model_dir / 'meeting'}"
            dist.init_process_group("gloo", init_method=meeting, rank=self._rank, world_size=self._size)
        tp = TensorParallel(self._rank, self._size, dist.group.WORLD)
        self._runner = build_runner(model_dir, config, config.num_pages, tp=tp)
