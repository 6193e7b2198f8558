"""The Llama family in native code for CPUs: the same model as `workers.models.llama`, but with one call per step."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.cpu.c_interface import (
    OPS,
    KvFormat,
    LayerWeights,
    LinearWeights,
    ModelShape,
    ModelWeights,
    Step,
)
from slipstream.kernels.pages.quantized_kv import page_tokens_of
from slipstream.workers.engine.execution.model_runner import GreedyTokens
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.rank_share import RankShare
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.directory.stored_quantization import OnLoad
from slipstream.workers.models.directory.tensor_check import checked_vocabulary
from slipstream.workers.models.interface.step_arrays import StepArrays
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.rope import rotary_frequencies
from slipstream.workers.models.weights.packed_form import SCALARS
from slipstream.workers.models.weights.packed_weights import LinearSlot, PackedWeights, load_packed

NATIVE_DTYPES = (torch.float32, torch.bfloat16)
KV_FORMATS = {torch.int8: KvFormat.INT8, torch.float8_e4m3fn: KvFormat.FP8}  # all others: the model's dtype
MAX_HEAD_DIM = 256
STAGES_OF_LAYER = 3  # keys and values, attention, feed-forward; see kernels/cpu/model.hpp


def is_native(config: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether the native kernels can compute this model."""
    return dtype in NATIVE_DTYPES and config.head_dim % 8 == 0 and config.head_dim <= MAX_HEAD_DIM


def load_native(
    model_dir: Path | str,
    library: ctypes.CDLL,
    *,
    dtype: torch.dtype,
    page_tokens: int,
    of_pages: torch.dtype | None = None,
    tp: TensorParallel | None = None,
    cache_dir: Path | None = None,
    quantization: OnLoad = "none",
    files: SteadyFiles | None = None,
) -> NativeLlama:
    """Loads a local directory in Hugging Face layout. `dtype` is one of NATIVE_DTYPES; `of_pages` is the pool's (see
    `kv_dtype`), None: the same. Packed weights are kept in and mapped from `cache_dir`, or are private without one.
    Quantised weights stay codes, be it that the checkpoint holds them so or that `quantization` asks for it.
    `files`: as for `load_packed`. Raises ModelError, FilesChanged."""
    config = ModelConfig.read(model_dir)
    tp = TensorParallel() if tp is None else tp
    share = RankShare.of(config, tp, checked_vocabulary(config, Path(model_dir)))
    weights = load_packed(
        Path(model_dir),
        share,
        dtype,
        library,
        cache_dir,
        stored=config.quantization,
        on_load=quantization,
        files=files,
    )
    return NativeLlama(
        config, share, weights, library, dtype=dtype, page_tokens=page_tokens, of_pages=of_pages or dtype, tp=tp
    )


class NativeLlama:
    """A model on one rank. All ranks of its group call the same methods with the same batch.

    Methods return views of memory that the next step overwrites.
    """

    def __init__(
        self,
        config: ModelConfig,
        share: RankShare,
        weights: PackedWeights,
        library: ctypes.CDLL,
        *,
        dtype: torch.dtype,
        page_tokens: int,
        of_pages: torch.dtype,
        tp: TensorParallel,
    ) -> None:
        self.config = config
        self.tp = tp
        self.dtype = dtype
        self.of_pages = of_pages
        self._page_tokens = page_tokens
        self._library = library
        self.weights = weights  # the native model points into them
        inv_freq, rotary_scale = rotary_frequencies(config)
        shape = ModelShape(
            SCALARS[dtype],
            config.num_layers,
            config.hidden_size,
            config.intermediate_size // tp.size,
            config.num_heads // tp.size,
            config.num_kv_heads // tp.size,
            config.head_dim,
            page_tokens,
            KV_FORMATS.get(of_pages, KvFormat.MODEL),
            share.embedding.rows.start,
            share.vocab_share,
            share.embedding.num_rows,
            tp.size > 1,
            config.rms_norm_eps,
            config.head_dim**-0.5,
            rotary_scale,
        )
        self._vocab_share = share.vocab_share
        self._end_of_layers = 1 + STAGES_OF_LAYER * config.num_layers
        self._handle = library.slipstream_model_create(shape, _model_weights(weights, config, inv_freq))
        weakref.finalize(self, library.slipstream_model_destroy, self._handle)
        self._step = Step()
        self._taken: StepArrays | None = None  # what `_step` points at
        self._taken_kv: Tensor | None = None
        self._x = torch.empty(0, config.hidden_size)
        self._partial = torch.empty(0, config.hidden_size)
        self._logits = torch.empty(0, share.vocab_share)
        self._best_ids = np.empty(0, np.int32)
        self._is_sound = np.empty(0, np.bool_)

    def forward(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """The last hidden states of a step, [tokens, hidden_size] in float32, before the final norm.

        `kv` is the rank's pool (see `kv_shape`) in `of_pages`; the step's keys and values are written into it.
        `layer_done(layer)` is called as soon as that layer's are there.
        """
        self._take(batch, kv)
        self._step.only_samples = False
        self._run_layers(layer_done, self._end_of_layers)
        return self._x[: batch.arrays.num_tokens]

    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """`forward`, then `logits` for the rows that sample. The last layer is computed for these alone, behind its
        keys and values. None on ranks other than 0, and where no row samples."""
        num_samples = len(batch.arrays.sample_rows)
        if self.tp.size > 1:
            hidden = self.forward(batch, kv, layer_done)
            return self.logits(hidden[batch.sample_indices]) if num_samples else None
        self._take(batch, kv)
        self._step.only_samples = True
        self._run_layers(layer_done, self._end_of_layers + 1)
        return self._logits[:num_samples, : self.config.vocab_size] if num_samples else None

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores of every token, [n, vocab_size] in float32, for rows [n, hidden_size] of what `forward` returned.

        A collective call; the whole vocabulary comes together on rank 0, the other ranks get None.
        """
        self._taken = None
        hidden = hidden.contiguous()
        rows = np.arange(len(hidden), dtype=np.int32)
        self._make_room_for_samples(len(hidden))
        step = self._step
        step.num_samples, step.sample_rows, step.x = len(hidden), _address(rows), hidden.data_ptr()
        self._run(self._end_of_layers, self._end_of_layers + 1)
        gathered = self.tp.gather_columns(self._logits[: len(hidden)])
        return None if gathered is None else gathered[:, : self.config.vocab_size]

    def greedy(
        self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None
    ) -> GreedyTokens | None:
        """The highest of `scores`. None on ranks other than 0."""
        if self.tp.size > 1:
            return self._gathered_greedy(batch, kv, layer_done)
        self._take(batch, kv)
        self._step.only_samples = True
        self._run_layers(layer_done, self._end_of_layers + 2)
        num_samples = len(batch.arrays.sample_rows)
        return GreedyTokens(self._best_ids[:num_samples], self._is_sound[:num_samples])

    @torch.inference_mode()
    def _gathered_greedy(
        self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None
    ) -> GreedyTokens | None:
        """`greedy` where each rank has a part of the vocabulary."""
        logits = self.scores(batch, kv, layer_done)
        if logits is None:
            return None
        highest, token_ids = logits.max(dim=-1)
        return GreedyTokens(token_ids.int().numpy(), highest.isfinite().numpy())

    def time_ops(self, is_on: bool) -> None:
        """Starts (from zero) or stops to measure the time of each kind of op (see `op_times`)."""
        self._library.slipstream_model_time(self._handle, is_on)

    def op_times(self) -> dict[str, tuple[float, int]]:
        """Seconds and calls by kind of op since `time_ops(True)`."""
        ns, calls = (ctypes.c_int64 * len(OPS))(), (ctypes.c_int64 * len(OPS))()
        self._library.slipstream_model_times(self._handle, ns, calls)
        return {op: (ns[i] / 1e9, calls[i]) for i, op in enumerate(OPS)}

    def _take(self, batch: StepBatch, kv: Tensor) -> None:
        """Points the native step at its arrays, and at memory for its results."""
        arrays, step = batch.arrays, self._step
        if arrays is self._taken and kv is self._taken_kv:
            return  # the arrays are at the same addresses as before
        self._taken, self._taken_kv = None, kv
        page_tokens = page_tokens_of(kv, self.config.head_dim)
        if kv.dtype != self.of_pages or page_tokens != self._page_tokens or not kv.is_contiguous():
            raise ValueError(
                f"kv: must be contiguous pages of {self._page_tokens} tokens in {self.of_pages}, "
                f"got {list(kv.shape)} in {kv.dtype}"
            )
        if len(self._x) < arrays.num_tokens:
            self._x = torch.empty(arrays.num_tokens, self.config.hidden_size)
            self._partial = torch.empty_like(self._x) if self.tp.size > 1 else self._partial
        self._make_room_for_samples(len(arrays.sample_rows))
        step.num_tokens, step.num_seqs, step.num_samples = arrays.num_tokens, arrays.num_seqs, len(arrays.sample_rows)
        step.token_ids = _address(arrays.token_ids)
        step.positions = _address(arrays.positions)
        step.slots = _address(arrays.slots)
        step.query_starts = _address(arrays.query_starts)
        step.kv_lens = _address(arrays.kv_lens)
        step.page_table = _address(arrays.page_table)
        step.page_table_stride = arrays.page_table.strides[0] // 4
        step.sample_rows = _address(arrays.sample_rows)
        step.kv, step.num_pages = kv.data_ptr(), kv.shape[1]
        step.x, step.partial = self._x.data_ptr(), self._partial.data_ptr()
        self._taken = arrays

    def _make_room_for_samples(self, num_samples: int) -> None:
        if len(self._logits) < num_samples:
            self._logits = torch.empty(num_samples, self._vocab_share)
            self._best_ids = np.empty(num_samples, np.int32)
            self._is_sound = np.empty(num_samples, np.bool_)
            step = self._step
            step.logits = self._logits.data_ptr()
            step.best_ids, step.is_sound = _address(self._best_ids), _address(self._is_sound)

    def _run_layers(self, layer_done: Callable[[int], None] | None, end: int) -> None:
        """Runs a step up to stage `end`, in several pieces if something else has to happen in between."""
        done = 0
        if self.tp.size > 1:
            done = self._run(0, 1)
            self.tp.all_reduce(self._x[: self._step.num_tokens])
        for layer in range(self.config.num_layers):
            first = 1 + STAGES_OF_LAYER * layer
            if layer_done is not None:
                done = self._run(done, first + 1)
                layer_done(layer)
            if self.tp.size > 1:
                self._run(done, first + 2)
                self._add_up()
                done = self._run(first + 2, first + 3)
                self._add_up()
        if done < end:
            self._run(done, end)

    def _add_up(self) -> None:
        x, partial = (tensor[: self._step.num_tokens] for tensor in (self._x, self._partial))
        x += self.tp.all_reduce(partial)

    def _run(self, first: int, end: int) -> int:
        self._library.slipstream_model_run(self._handle, self._step, first, end)
        return end


def _model_weights(weights: PackedWeights, config: ModelConfig, inv_freq: Tensor) -> ModelWeights:
    """The structure that describes the weights. The native model copies it, but not the packed weights themselves."""

    def linear(slot: LinearSlot) -> LinearWeights:
        return LinearWeights(weights.packed(slot), weights.address(slot.bias))

    layers = (LayerWeights * config.num_layers)()
    for index, slots in enumerate(weights.layout.layers):
        layers[index] = LayerWeights(
            weights.address(slots.attention_norm),
            linear(slots.qkv),
            weights.address(slots.qk_norm),
            linear(slots.output),
            weights.address(slots.mlp_norm),
            linear(slots.gate_up),
            linear(slots.down),
            config.layer_windows[index] or 0,
        )
    layout = weights.layout
    return ModelWeights(
        weights.address(layout.embedding),
        layers,
        weights.address(layout.final_norm),
        linear(layout.lm_head),
        inv_freq.data_ptr(),
    )


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
