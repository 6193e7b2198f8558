"""Runs steps on a GPU: everything is queued without waiting, and the host waits only once, for the sampled tokens.

decoding only      arrays --pinned copy--> DecodeInputs -> graph of the batch's bucket --.
with prefill, or   arrays --pinned copy--> tensors -----> kernels one by one ------------+-> logits -> sampler
pages to send
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from slipstream.kernels.attention.device_inputs import DeviceInputs
from slipstream.kernels.ops import AttentionShape, AttentionStep
from slipstream.workers.engine.execution.gpu.batch_buckets import batch_buckets
from slipstream.workers.engine.execution.gpu.cuda_graphs import DecodeGraphs, Recorder
from slipstream.workers.engine.execution.gpu.gpu_inputs import PAD_SLOT, DecodeInputs, StepUpload
from slipstream.workers.engine.execution.gpu.gpu_sampler import GpuSampler
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.plan.step_plan import PromptRows, SampledTokens, SamplingRow, StepPlan
from slipstream.workers.engine.sampling.prompt_scorer import block_rows, by_sequence, scored_in_blocks
from slipstream.workers.models.interface.grouped_step import begin_groups
from slipstream.workers.models.interface.step_arrays import GroupArrays, StepArrays
from slipstream.workers.models.ops_model import OpsModel

SHORT_PROMPT_TOKENS = 80  # more than the matrix products for decoding support
MAX_TOP = 20  # best tokens that a request may ask for beside each of its prompt


class DeviceOps(Protocol):
    def begin_device_step(self, inputs: DeviceInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        """`Ops.begin_step` of inputs that are on the device already; queues work at most."""


class GpuRunner(ModelRunner):
    """A `ModelRunner` that waits for the device only to get the tokens of a step.

    `ops` are those that the model computes with. `sampling` is `kernels.sampling.gpu.sampling`, if it is there.
    `record` makes the graphs; without it, and where recording fails, every step is queued kernel by kernel.
    `max_step_tokens` are the most of a prompt that a step computes. All ranks of a group must call the same methods in
    the same order.
    """

    def __init__(
        self,
        model: OpsModel,
        ops: DeviceOps,
        kv: Tensor,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_step_tokens: int,
        recorder: Recorder,
        sampling: Any = None,
    ) -> None:
        super().__init__(model, kv)
        self._ops_model = model
        self._decoder = model.decoder
        self._ops = ops
        self._max_model_len = max_model_len
        self._longest_prompt = min(max_step_tokens, max_model_len)
        self._upload = StepUpload(kv.device)
        self._inputs = DecodeInputs(
            max_num_seqs, -(-max_model_len // self._page_tokens), kv.device, len(model.config.kv.page_groups.windows)
        )
        self._graphs = DecodeGraphs(self._decode, batch_buckets(max_num_seqs), recorder)
        self._gpu_sampler = GpuSampler(model.config.vocab_size, kv.device, sampling)

    def record(self) -> None:
        """Records decode steps for all batch buckets, and computes what else a step may consist of once: kernels are
        compiled now and not while a request waits for a token, and a step that the memory does not suffice for is known
        now. Takes seconds and no pages. Raises torch.OutOfMemoryError."""
        with torch.inference_mode():
            self._graphs.record()
            for bucket in self._graphs.buckets:
                logits = self._ops_model.logits(self._graphs.replay(bucket))
                if logits is not None:
                    self._gpu_sampler.sample(logits, [])
            for num_tokens in sorted({min(SHORT_PROMPT_TOKENS, self._longest_prompt), self._longest_prompt}):
                hidden = self._hidden(self._padding_prompt(num_tokens), None)[0]
            rows = PromptRows(0, bytes(4 * min(block_rows(self.model.config.vocab_size), len(hidden))), MAX_TOP)
            scored_in_blocks(self._ops_model.logits, hidden, (rows,), self.model.config.vocab_size)

    @property
    def recorded_batches(self) -> tuple[int, ...]:
        """The batch sizes that decode steps are padded to, ascending."""
        return self._graphs.buckets

    @torch.inference_mode()
    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        """A token for each sequence that samples, in order; none on ranks other than 0."""
        layer_done = self._begin_sends(plan)
        if plan.prompt_rows:
            return self._execute_prompt_rows(plan, sampling, layer_done)
        hidden = self._compute(plan.arrays, layer_done)
        logits = None if hidden is None else self._ops_model.logits(hidden)
        return SampledTokens() if logits is None else self._gpu_sampler.sample(logits, sampling)

    def _compute(self, arrays: StepArrays, layer_done: Callable[[int], None] | None) -> Tensor | None:
        """Hidden states of the tokens that are sampled from, [n, hidden_size]; None if there are none."""
        num_seqs = arrays.num_seqs
        is_decoding = arrays.num_tokens == num_seqs == len(arrays.sample_rows)
        bucket = self._graphs.bucket_for(num_seqs) if is_decoding and layer_done is None else None
        if bucket is not None:
            self._inputs.load(arrays, bucket)
            return self._graphs.replay(bucket)[:num_seqs]
        hidden, sample_rows = self._hidden(arrays, layer_done)
        return hidden.index_select(0, sample_rows) if len(sample_rows) else None

    def _hidden(self, arrays: StepArrays, layer_done: Callable[[int], None] | None) -> tuple[Tensor, Tensor]:
        """Hidden states of all tokens, [tokens, hidden_size], and the rows that are sampled from."""
        step = self._upload.send(arrays)
        return self._decoder.run(step.token_ids, self._begin_step(step.inputs), layer_done), step.sample_rows

    def _execute_prompt_rows(
        self, plan: StepPlan, sampling: Sequence[SamplingRow], layer_done: Callable[[int], None] | None
    ) -> SampledTokens:
        hidden, sample_rows = self._hidden(plan.arrays, layer_done)
        vocab_size = self.model.config.vocab_size
        numbers = scored_in_blocks(self._ops_model.logits, hidden, plan.prompt_rows, vocab_size)
        logits = self._ops_model.logits(hidden.index_select(0, sample_rows)) if len(sample_rows) else None
        if numbers is None:
            return SampledTokens()
        sampled = SampledTokens() if logits is None else self._gpu_sampler.sample(logits, sampling)
        return replace(sampled, prompt_scores=tuple(by_sequence(numbers, plan.prompt_rows)))

    def _padding_prompt(self, num_tokens: int) -> StepArrays:
        """A step whose keys and values go nowhere, and which samples nothing."""
        slots = np.full(num_tokens, PAD_SLOT, np.int32)
        page_table = np.zeros((1, -(-num_tokens // self._page_tokens)), np.int32)
        num_more = len(self.model.config.kv.page_groups.windows) - 1
        return StepArrays(
            token_ids=np.zeros(num_tokens, np.int32),
            positions=np.arange(num_tokens, dtype=np.int32),
            slots=slots,
            query_starts=np.array([0, num_tokens], np.int32),
            kv_lens=np.array([num_tokens], np.int32),
            page_table=page_table,
            sample_rows=np.zeros(0, np.int32),
            groups=(GroupArrays(slots, page_table),) * num_more,
        )

    def _decode(self, num_rows: int) -> Tensor:
        """A decode step over the static inputs, [rows, hidden_size]."""
        inputs = self._inputs.inputs(num_rows, self._max_model_len)
        return self._decoder.run(self._inputs.token_ids(num_rows), self._begin_step(inputs))

    def _begin_step(self, inputs: tuple[DeviceInputs, ...]) -> AttentionStep:
        """`inputs` are by page group."""
        return begin_groups(
            self.model.config.kv,
            self._decoder.attention,
            inputs,
            lambda of_group, shape: self._ops.begin_device_step(of_group, shape, self.kv),
        )
