"""A family that no kernel knows: it is written over `Ops`, and native models compute it without more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.kernels.ops import AttentionStep
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.llama import Llama
from slipstream.workers.models.model_loader import load_model
from slipstream.workers.models.native_model import load_native
from slipstream.workers.models.registry import FAMILIES
from tests.support.workers.paged_run import PagedRun

PAGE_TOKENS = 8
PROMPT = [(7 * i) % 250 + 3 for i in range(45)]


class Parallel(Llama):
    """Attention and feed-forward read the same hidden states, as in GPT-J; and the last layer attends twice."""

    def run(self, token_ids: Tensor, step: AttentionStep, layer_done: Callable[[int], None] | None = None) -> Tensor:
        ops, eps = self.ops, self.config.rms_norm_eps
        x = ops.embedding(token_ids, self.weights.embedding)
        last = len(self.weights.layers) - 1
        for index, layer in enumerate(self.weights.layers):
            inner = ops.norm_gated(x, layer.mlp_norm, eps, layer.gate_up.weight, layer.gate_up.bias)
            qkv = ops.norm_linear(x, layer.attention_norm, eps, layer.qkv.weight, layer.qkv.bias)
            q = step.write(qkv, layer.qk_norm, index)
            if layer_done is not None:
                layer_done(index)
            ops.linear(step.attend(q, index, None), layer.output.weight, layer.output.bias, add_to=x)
            if index == last:
                ops.linear(step.attend(q, index, None), layer.output.weight, layer.output.bias, add_to=x)
            ops.linear(inner, layer.down.weight, layer.down.bias, add_to=x)
        return x


@pytest.fixture
def model_dir(monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Callable[[str], Path]) -> Path:
    monkeypatch.setitem(FAMILIES, "llama", Parallel.read)
    return tiny_model_dir("llama_biased")


@pytest.mark.skipif(native_library() is None, reason="no native kernels")
def test_it_scores_natively_as_in_torch(model_dir: Path) -> None:
    native = load_native(model_dir, native_library(), dtype=torch.float32, page_tokens=PAGE_TOKENS)
    steps = [PROMPT[:30], PROMPT[30:44], PROMPT[44:]]
    found = [
        [run.step({"a": ids, "b": ids[::-1]}) for ids in steps]
        for run in (PagedRun(native), PagedRun(load_model(model_dir, dtype=torch.float32)))
    ]
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.skipif(native_library() is None, reason="no native kernels")
def test_scores_of_last_rows_are_those_of_the_whole_step(model_dir: Path) -> None:
    native = load_native(model_dir, native_library(), dtype=torch.bfloat16, page_tokens=PAGE_TOKENS)
    pages = np.arange(6, dtype=np.int32)
    batch = StepBatch.build([SequenceSlice(0, tuple(PROMPT), pages.tobytes(), True)], PAGE_TOKENS)
    config = native.config
    pools = [torch.zeros(config.num_layers, 6, config.num_kv_heads, 2, 8, config.head_dim).bfloat16() for _ in range(2)]
    scores = native.scores(batch, pools[0])
    assert scores is not None
    scores = scores.clone()
    whole = native.logits(native.forward(batch, pools[1])[batch.sample_indices])
    assert whole is not None
    assert torch.equal(scores, whole)
    assert torch.equal(*pools)
