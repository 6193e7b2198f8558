"""Builds a runner that makes the most of a GPU, from a loaded model and its pool."""

from __future__ import annotations

import logging

from torch import Tensor

from slipstream.kernels.gpu_modules import gpu_module
from slipstream.workers.engine.execution.gpu.cuda_graphs import CudaGraphRecorder
from slipstream.workers.engine.execution.gpu.gpu_runner import GpuRunner
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.models.ops_model import OpsModel

log = logging.getLogger(__name__)


def build_gpu_runner(
    model: OpsModel, kv: Tensor, *, max_num_seqs: int, max_model_len: int, max_step_tokens: int
) -> ModelRunner:
    """A runner with Triton kernels and recorded decode steps; or, after a warning, one with plain torch, if the kernels
    are missing or do not support the model."""
    ops = gpu_module("gpu.triton_ops")
    if ops is None:
        log.warning("triton is not installed: the GPU is used with plain torch, at a fraction of its speed")
        return ModelRunner(model, kv)
    try:
        ops.check_pool(kv, model.decoder.attention)
    except ValueError as error:
        log.warning("the GPU is used with plain torch, at a fraction of its speed: %s", error)
        return ModelRunner(model, kv)
    triton_ops = ops.TritonOps()
    model.decoder.ops = triton_ops
    recorder = CudaGraphRecorder(kv.device)
    runner = GpuRunner(
        model,
        triton_ops,
        kv,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_step_tokens=max_step_tokens,
        recorder=recorder,
        sampling=gpu_module("sampling.gpu.sampling"),
    )
    runner.record()
    return runner
