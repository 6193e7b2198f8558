"""An engine over a model with random weights, ready to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gpu_checks.shapes import Form, random_model, random_pool, read_config

from slipstream.kernels.gpu_modules import gpu_module
from slipstream.kernels.ops import Ops, TorchOps
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.engine.execution.gpu.cuda_graphs import CudaGraphRecorder
from slipstream.workers.engine.execution.gpu.gpu_runner import GpuRunner
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.executor import Executor
from slipstream.workers.engine.plan.step_plan import StepPlan
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from slipstream.workers.models.ops_model import OpsModel

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """`num_seqs` greedy requests of `num_prompt` random tokens, which generate `num_output` each."""

    num_seqs: int
    num_prompt: int
    num_output: int

    def prompts(self, vocab_size: int) -> list[list[int]]:
        rng = np.random.default_rng(0)
        return rng.integers(2, vocab_size - 1000 if vocab_size > 2000 else vocab_size, self.shape).tolist()

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_seqs, self.num_prompt


@dataclass(frozen=True, slots=True)
class Subject:
    """A runner with a pool full of random keys and values, so that any context can be stepped upon."""

    model: OpsModel
    form: Form
    executor: Executor
    limits: EngineLimits

    def engine(self) -> NativeEngine:
        return NativeEngine(self.limits, self.executor)

    def decode_plan(self, num_seqs: int, context: int) -> StepPlan:
        """A step in which every sequence computes its token number `context`."""
        rng = np.random.default_rng(num_seqs)
        num_pages = -(-context // PAGE_TOKENS)
        pages = rng.permutation(self.limits.num_pages)[: num_seqs * num_pages].astype(np.int32).reshape(num_seqs, -1)
        tokens = rng.integers(0, self.limits.vocab_size, num_seqs).tolist()
        return self._plan(
            [
                SequenceSlice(context - 1, (token,), row.tobytes(), True)
                for token, row in zip(tokens, pages, strict=True)
            ]
        )

    def prefill_plan(self, num_tokens: int) -> StepPlan:
        """One prompt from its beginning to its end."""
        rng = np.random.default_rng(num_tokens)
        pages = rng.permutation(self.limits.num_pages)[: -(-num_tokens // PAGE_TOKENS)].astype(np.int32)
        tokens = tuple(rng.integers(0, self.limits.vocab_size, num_tokens).tolist())
        return self._plan([SequenceSlice(0, tokens, pages.tobytes(), True)])

    def _plan(self, slices: Sequence[SequenceSlice]) -> StepPlan:
        return StepPlan(StepArrays.build(slices, PAGE_TOKENS), greedy=True)


def make_subject(
    shape: str,
    form: Form,
    ops: Ops,
    device: torch.device,
    *,
    num_tokens: int,
    max_num_seqs: int,
    max_step_tokens: int,
) -> Subject:
    """A model in `shape`, with a pool for `num_tokens`; decode steps are recorded as graphs on a GPU."""
    config = read_config(shape)
    model = random_model(config, ops, device, fp8=form.fp8_weights)
    num_pages = num_tokens // PAGE_TOKENS
    kv = random_pool(config, form, num_pages, PAGE_TOKENS, device)
    limits = EngineLimits(
        num_pages=num_pages,
        page_tokens=PAGE_TOKENS,
        max_model_len=min(num_tokens, config.max_position_embeddings),
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        max_queued_tokens=num_tokens,
        vocab_size=config.vocab_size,
        eos_token_ids=(),
        model_id=shape,
    )
    return Subject(model, form, _executor(model, ops, kv, limits), limits)


def requests(work: Work, vocab_size: int) -> list[EngineRequest]:
    params = SamplingParams(max_tokens=work.num_output, temperature=0.0, ignore_eos=True)
    return [
        EngineRequest(f"r{i}", 0, pack_ids(prompt), b"", params) for i, prompt in enumerate(work.prompts(vocab_size))
    ]


def _executor(model: OpsModel, ops: Ops, kv: torch.Tensor, limits: EngineLimits) -> Executor:
    if isinstance(ops, TorchOps):
        return ModelRunner(model, kv)
    runner = GpuRunner(
        model,
        ops,
        kv,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        max_step_tokens=limits.max_step_tokens,
        recorder=CudaGraphRecorder(kv.device),
        sampling=gpu_module("sampling.gpu.sampling"),
    )
    runner.record()
    return runner
