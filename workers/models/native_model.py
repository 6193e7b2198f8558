"""A decoder in native code for CPUs: what its family computes over `NativeOps` is recorded once, and then each step is
one call."""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.cpu.c_interface import AttentionKind, KvFormat, ModelShape, Op, RotaryKind, Step, StepGroup
from slipstream.kernels.cpu.native_ops import NativeOps
from slipstream.kernels.cpu.native_program import Buffers, NativeProgram
from slipstream.kernels.cpu.recorded_program import ProgramStop, Recorded, Value, in_page_groups, only_samples
from slipstream.kernels.elementwise.softcap import softcap
from slipstream.kernels.ops import StepInputs
from slipstream.kernels.pages.quantized_kv import page_tokens_of
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.page_groups import PageGroups
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.directory.stored_quantization import OnLoad
from slipstream.workers.models.interface.decoder import Decoder
from slipstream.workers.models.interface.model import GreedyTokens
from slipstream.workers.models.interface.step_arrays import StepArrays
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.registry import FAMILIES
from slipstream.workers.models.sharding.rank_share import RankShare
from slipstream.workers.models.sharding.tensor_check import checked_names
from slipstream.workers.models.weights.packed_form import SCALARS
from slipstream.workers.models.weights.packed_weights import PackedWeights, load_packed

NATIVE_DTYPES = (torch.float32, torch.bfloat16)
KV_FORMATS = {torch.int8: KvFormat.INT8, torch.float8_e4m3fn: KvFormat.FP8}  # all others: the model's dtype
MAX_HEAD_DIM = 512


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
    expert_parallel: bool = False,
    files: SteadyFiles | None = None,
) -> NativeModel:
    """Loads a local directory in Hugging Face layout. `dtype` is one of NATIVE_DTYPES; `of_pages` is the pool's (see
    `kv_dtype`), None: that of the model. Packed weights are kept in and mapped from `cache_dir`, or are private without
    one. Quantised weights stay codes, be it that the checkpoint holds them so or that `quantization` asks for it.
    `expert_parallel`: see `RankShare.of`; `files`: as for `load_packed`. Raises ModelError, FilesChanged."""
    config = ModelConfig.read(model_dir)
    tp = TensorParallel() if tp is None else tp
    share = RankShare.of(config, tp, checked_names(config, Path(model_dir)), expert_parallel=expert_parallel)
    ops = NativeOps()
    decoder, weights = load_packed(
        Path(model_dir),
        lambda source: FAMILIES[config.family](config, share, source, tp, ops),
        dtype,
        library,
        cache_dir,
        stored=config.quantization,
        on_load=quantization,
        files=files,
    )
    attention = decoder.attention
    rotaries = [RotaryKind(rotary.inv_freq.data_ptr(), rotary.scale) for rotary in attention.rotaries]
    shape = ModelShape(
        type=SCALARS[dtype],
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        page_tokens=page_tokens,
        kv_format=KV_FORMATS.get(of_pages or dtype, KvFormat.MODEL),
        first_id=share.embedding.rows.start,
        num_ids=share.embedding.num_rows,
        num_rotaries=len(rotaries),
        rotaries=(RotaryKind * len(rotaries))(*rotaries),
        attention_scale=attention.scale,
        attention_softcap=attention.softcap or 0.0,
    )
    return NativeModel(
        config,
        DecoderRecord.of(decoder, ops, config.kv.page_groups),
        shape,
        weights,
        library,
        of_pages=of_pages or dtype,
        tp=tp,
    )


@dataclass(frozen=True, slots=True)
class DecoderRecord:
    """What a decoder computes in a step: its layers, the scores of the sampled rows, the best token of each."""

    dtype: torch.dtype  # of the model
    instructions: tuple[Recorded, ...]
    stops: tuple[ProgramStop, ...]
    end_of_layers: int
    end_of_scores: int
    hidden: Value
    scores: Value

    @staticmethod
    def of(decoder: Decoder, ops: NativeOps, groups: PageGroups) -> DecoderRecord:
        """`decoder` computes with `ops`, which has recorded nothing yet; `groups` are those of its layers."""
        nothing = cast(Tensor, None)  # a record is of all steps
        step = ops.begin_step(cast(StepInputs, None), decoder.attention, nothing)
        hidden = cast(Value, decoder.run(nothing, step, ops.record_layer_done))
        end_of_layers = len(ops.instructions)
        scores = ops.record_scores(decoder.scores, hidden)
        end_of_scores = len(ops.instructions)
        ops.instructions.append(Recorded(Op.BEST, scores, on_samples=True))
        return DecoderRecord(
            decoder.attention.dtype,
            in_page_groups(ops.instructions, groups.places),
            tuple(ops.stops),
            end_of_layers,
            end_of_scores,
            hidden,
            scores,
        )


class NativeModel:
    """A model on one rank. All ranks of its group call the same methods with the same batch.

    Methods return views of memory that the next step overwrites.
    """

    def __init__(
        self,
        config: ModelConfig,
        record: DecoderRecord,
        shape: ModelShape,
        weights: PackedWeights,
        library: ctypes.CDLL,
        *,
        of_pages: torch.dtype,
        tp: TensorParallel,
    ) -> None:
        self.config = config
        self.tp = tp
        self.dtype = record.dtype
        self.of_pages = of_pages
        self.weights = weights  # programs point into them
        self._page_tokens: int = shape.page_tokens
        self._num_more_groups = len(config.kv.page_groups.windows) - 1  # behind the first
        self._library = library
        self._record = record
        self._reductions = tuple(stop for stop in record.stops if stop.reduced is not None)
        self._buffers = Buffers(record.dtype)
        records = [record.instructions]
        if tp.size == 1:
            records.append(only_samples(record.instructions))
        attends = [one for instructions in records for one in instructions if one.op is Op.ATTEND]
        kinds = list(dict.fromkeys((one.window, one.on_samples, one.group) for one in attends))
        self._whole, *short = (
            NativeProgram(one, self._buffers, (record.hidden, record.scores), kinds, weights.address) for one in records
        )
        self._short = short[0] if short else None  # for what is wanted of last rows alone
        shape.kinds = (AttentionKind * len(kinds))(
            *(AttentionKind(window or 0, on_samples, group) for window, on_samples, group in kinds)
        )
        shape.num_kinds = len(kinds)
        self._handle = library.slipstream_model_create(shape)
        weakref.finalize(self, library.slipstream_model_destroy, self._handle)
        self._step = Step()
        self.expert_rows = _expert_rows(record.instructions)
        if self.expert_rows is not None:
            self._step.expert_rows = _address(self.expert_rows)
        self._taken: StepArrays | None = None  # what `_step` points at
        self._taken_kv: Tensor | None = None
        self._best_ids = np.empty(0, np.int32)
        self._is_sound = np.empty(0, np.bool_)

    def forward(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """The last hidden states of a step, [tokens, hidden_size] in float32, before the final norm.

        `kv` is the rank's pool (see `kv_shape`) in `of_pages`; the step's keys and values are written into it.
        `layer_done(layer)` is called as soon as that layer's are there.
        """
        self._take(batch, kv)
        self._run_step(self._whole, layer_done, self._record.end_of_layers)
        return self._rows(self._record.hidden, batch.arrays.num_tokens)

    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """`forward`, then `logits` for the rows that sample. The last layer is computed for these alone, behind its
        keys and values. None on ranks other than 0, and where no row samples."""
        num_samples = len(batch.arrays.sample_rows)
        if self.tp.size > 1:
            hidden = self.forward(batch, kv, layer_done)
            return self.logits(hidden[batch.sample_indices]) if num_samples else None
        self._take(batch, kv)
        self._run_samples(layer_done, behind_scores=0)
        if not num_samples:
            return None
        scores = self._rows(self._record.scores, num_samples)[:, : self.config.vocab_size]
        return softcap(scores, self.config.final_softcap)

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores of every token, [n, vocab_size] in float32, for rows [n, hidden_size] of what `forward` returned.

        A collective call; the whole vocabulary comes together on rank 0, the other ranks get None.
        """
        self._taken = None
        hidden = hidden.contiguous()
        rows = np.arange(len(hidden), dtype=np.int32)
        self._make_room(0, len(hidden))
        step, record = self._step, self._record
        step.num_samples, step.sample_rows = len(hidden), _address(rows)
        with self._buffers.replaced(self._whole.buffer_of[record.hidden], hidden):
            self._run(self._whole, record.end_of_layers, record.end_of_scores)
        gathered = self.tp.gather_columns(self._rows(record.scores, len(hidden)))
        if gathered is None:
            return None
        return softcap(gathered[:, : self.config.vocab_size], self.config.final_softcap)

    def greedy(
        self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None
    ) -> GreedyTokens | None:
        """The highest of `scores`, which no cap changes. None on ranks other than 0."""
        if self.tp.size > 1:
            return self._gathered_greedy(batch, kv, layer_done)
        self._take(batch, kv)
        self._run_samples(layer_done, behind_scores=1)
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
        for program in self._programs():
            program.time(is_on)

    def op_times(self) -> dict[str, float]:
        """Seconds since `time_ops(True)` by kind of op: the name of its weight in a layer, or its own."""
        seconds: Counter[str] = Counter()
        for program in self._programs():
            seconds.update(program.seconds())
        return dict(seconds)

    def _programs(self) -> tuple[NativeProgram, ...]:
        return (self._whole,) if self._short is None else (self._whole, self._short)

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
        if len(arrays.groups) != self._num_more_groups:
            raise ValueError(
                f"arrays: pages of {len(arrays.groups) + 1} groups, the model has {self._num_more_groups + 1}"
            )
        self._make_room(arrays.num_tokens, len(arrays.sample_rows))
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
        if arrays.groups:
            step.more_groups = (StepGroup * len(arrays.groups))(
                *(
                    StepGroup(_address(group.slots), _address(group.page_table), group.page_table.strides[0] // 4)
                    for group in arrays.groups
                )
            )
        self._taken = arrays

    def _make_room(self, num_tokens: int, num_samples: int) -> None:
        if self._buffers.reserve(num_tokens, num_samples):
            self._step.buffers = self._buffers.addresses
        if len(self._best_ids) < num_samples:
            self._best_ids = np.empty(num_samples, np.int32)
            self._is_sound = np.empty(num_samples, np.bool_)
            self._step.best_ids, self._step.is_sound = _address(self._best_ids), _address(self._is_sound)

    def _rows(self, value: Value, num_rows: int) -> Tensor:
        """`value` of the step just computed. Programs keep what is asked for in the same buffers."""
        return self._buffers[self._whole.buffer_of[value]][:num_rows]

    def _run_samples(self, layer_done: Callable[[int], None] | None, *, behind_scores: int) -> None:
        """Runs a step up to the scores of the rows that sample, and so many instructions more."""
        program, step = self._whole, self._step
        if self._short is not None and step.num_samples < step.num_tokens:
            program = self._short if self._library.slipstream_samples_last_rows(step) else program
        self._run_step(program, layer_done, len(program) - 1 + behind_scores)

    def _run_step(self, program: NativeProgram, layer_done: Callable[[int], None] | None, end: int) -> None:
        """Runs a step up to instruction `end`, in several pieces if something else has to happen in between."""
        done = 0
        for stop in self._reductions if layer_done is None else self._record.stops:
            done = self._run(program, done, stop.index)
            if stop.reduced is not None:
                self._reduce(stop)
            elif layer_done is not None and stop.layer is not None:
                layer_done(stop.layer)
        self._run(program, done, end)

    def _reduce(self, stop: ProgramStop) -> None:
        assert stop.reduced is not None
        total = self.tp.all_reduce(self._rows(stop.reduced, self._step.num_tokens))
        if stop.add_to is not None:
            self._rows(stop.add_to, self._step.num_tokens).add_(total)

    def _run(self, program: NativeProgram, first: int, end: int) -> int:
        if first < end:
            self._library.slipstream_model_run(self._handle, program.native, self._step, first, end)
        return end


def _expert_rows(instructions: Sequence[Recorded]) -> NDArray[np.int64] | None:
    """[layers with experts, experts]: how many rows have chosen each, which the library adds to. None: no experts."""
    routings = [one.routing for one in instructions if one.routing is not None]
    return np.zeros((len(routings), routings[0].num_experts), np.int64) if routings else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
