"""A rank's share of quantised linear layers, from the tensors of a checkpoint, or quantised on the way in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.quantization.quantized_checkpoint import fp8_from_scaled, int4_from_awq, int4_from_gptq
from slipstream.kernels.quantization.quantized_weight import (
    CODES_PER_WORD,
    Int4Weight,
    QuantizedWeight,
    join_outputs,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.stored_quantization import (
    AwqStored,
    Fp8Stored,
    GptqStored,
    OnLoad,
    Stored,
    int4_group,
)
from slipstream.workers.models.sharding.quantized_shares import check_share, columns_of, reordered_sentence
from slipstream.workers.models.sharding.rank_share import LinearShare, TensorPart
from slipstream.workers.models.weights.checkpoint import READABLE_DTYPES, Checkpoint


@dataclass(frozen=True, slots=True)
class QuantizedReader:
    checkpoint: Checkpoint
    stored: Stored

    def read(self, share: LinearShare) -> QuantizedWeight | None:
        """The weights of `share` as one, on the CPU; None where the checkpoint has them unquantised. Raises ModelError
        if tensors are missing or do not fit together, or if the rank's share cuts a block, group or word of codes."""
        are_quantized = [self._is_quantized(part) for part in share.weights]
        if not any(are_quantized):
            return None
        if not all(are_quantized):
            plain = share.weights[are_quantized.index(False)].name
            raise ModelError(f"{self.checkpoint.model_dir}: tensor {plain} is not quantised, its neighbours are")
        try:
            return join_outputs([self._part(part) for part in share.weights])
        except ValueError as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{self.checkpoint.model_dir}: tensor {share.weights[0].name}: {error}") from error

    def is_quantized(self, share: LinearShare) -> bool:
        """Whether the checkpoint has any of it quantised. Reads no weights."""
        return any(self._is_quantized(part) for part in share.weights)

    def is_reordered(self, share: LinearShare) -> bool:
        """Whether inputs were quantised in another order than they come in (GPTQ's act-order)."""
        for part in share.weights:
            name = _sibling(part, "g_idx")
            if self.checkpoint.shape_of(name) is not None:
                groups = TensorPart(name, (part.stored_shape[1],), columns_of(part))
                g_idx = self.checkpoint.mapped(groups, (torch.int32, torch.int64))
                if (g_idx.diff() < 0).any():
                    return True
        return False

    def _is_quantized(self, part: TensorPart) -> bool:
        if isinstance(self.stored, Fp8Stored):
            return self._scale_name(part) is not None
        return self.checkpoint.shape_of(_sibling(part, "qweight")) is not None

    def _part(self, part: TensorPart) -> QuantizedWeight:
        check_share(self.checkpoint.model_dir, part, self.stored)
        match self.stored:
            case Fp8Stored(block=block):
                return self._fp8(part, block)
            case AwqStored(group_size=group_size):
                return self._int4(part, group_size, self._awq)
            case GptqStored(group_size=group_size):
                return self._int4(part, group_size, self._gptq)

    def _fp8(self, part: TensorPart, block: tuple[int, int] | None) -> QuantizedWeight:
        codes = self.checkpoint.mapped(part, (torch.float8_e4m3fn,))
        name = self._scale_name(part)
        assert name is not None
        shape = self.checkpoint.shape_of(name)
        assert shape is not None
        rows, columns = part.rows, columns_of(part)
        num_rows, num_columns = part.stored_shape
        if block is None:
            own = rows if shape and shape[0] == num_rows else slice(0, 1)  # of channels, or of the whole tensor
            return fp8_from_scaled(codes, self.checkpoint.mapped(TensorPart(name, shape, own)))
        own_rows = slice(rows.start // block[0], -(-rows.stop // block[0]))
        own_columns = slice(columns.start // block[1], -(-columns.stop // block[1]))
        stored_shape = (-(-num_rows // block[0]), -(-num_columns // block[1]))
        scales = self.checkpoint.mapped(TensorPart(name, stored_shape, own_rows, own_columns), READABLE_DTYPES)
        return fp8_from_scaled(codes, scales, block)

    def _scale_name(self, part: TensorPart) -> str | None:
        names = (f"{part.name}_scale_inv", f"{part.name}_scale")
        return next((name for name in names if self.checkpoint.shape_of(name) is not None), None)

    def _int4(
        self, part: TensorPart, group_size: int | None, read: Callable[[TensorPart, int, slice, slice], Int4Weight]
    ) -> Int4Weight:
        """`read(part, groups, words of outputs, own groups)` with the number of groups that are stored."""
        num_columns = part.stored_shape[1]
        group_size = num_columns if group_size is None else group_size
        columns = columns_of(part)
        own_groups = slice(columns.start // group_size, -(-columns.stop // group_size))
        words = slice(part.rows.start // CODES_PER_WORD, part.rows.stop // CODES_PER_WORD)
        return read(part, num_columns // group_size, words, own_groups)

    def _awq(self, part: TensorPart, num_groups: int, words: slice, groups: slice) -> Int4Weight:
        num_rows, num_columns = part.stored_shape
        num_words = num_rows // CODES_PER_WORD
        qweight = TensorPart(_sibling(part, "qweight"), (num_columns, num_words), columns_of(part), words)
        return int4_from_awq(
            self.checkpoint.mapped(qweight, (torch.int32,)), *self._grid(part, num_groups, words, groups)
        )

    def _gptq(self, part: TensorPart, num_groups: int, words: slice, groups: slice) -> Int4Weight:
        assert isinstance(self.stored, GptqStored)
        num_rows, num_columns = part.stored_shape
        columns = columns_of(part)
        own_words = slice(columns.start // CODES_PER_WORD, columns.stop // CODES_PER_WORD)
        qweight = TensorPart(_sibling(part, "qweight"), (num_columns // CODES_PER_WORD, num_rows), own_words, part.rows)
        qzeros, scales = self._grid(part, num_groups, words, groups)
        g_idx = None
        if self.checkpoint.shape_of(_sibling(part, "g_idx")) is not None:
            stored = TensorPart(_sibling(part, "g_idx"), (num_columns,), columns)
            g_idx = self.checkpoint.mapped(stored, (torch.int32, torch.int64)) - groups.start
            if g_idx.min() < 0 or g_idx.max() >= groups.stop - groups.start:
                raise ModelError(reordered_sentence(self.checkpoint.model_dir, part.name))
        return int4_from_gptq(
            self.checkpoint.mapped(qweight, (torch.int32,)),
            qzeros,
            scales,
            g_idx,
            zeros_minus_one=self.stored.zeros_minus_one,
        )

    def _grid(self, part: TensorPart, num_groups: int, words: slice, groups: slice) -> tuple[Tensor, Tensor]:
        """Zeros and scales, which AWQ and GPTQ store alike."""
        num_rows = part.stored_shape[0]
        qzeros = TensorPart(_sibling(part, "qzeros"), (num_groups, num_rows // CODES_PER_WORD), groups, words)
        scales = TensorPart(_sibling(part, "scales"), (num_groups, num_rows), groups, part.rows)
        return self.checkpoint.mapped(qzeros, (torch.int32,)), self.checkpoint.mapped(scales)


def quantized_on_load(weight: Tensor, kind: OnLoad) -> QuantizedWeight:
    """`weight` [out, in], a float matrix, in the form that `engine.quantization` asks for: `fp8` and `int8` with a
    scale a channel, `int4` in groups of 128 inputs or the largest power of two below that divides them. Raises
    ModelError."""
    match kind:
        case "fp8":
            return quantize_fp8(weight)
        case "int8":
            return quantize_int8(weight)
        case "int4":
            return quantize_int4(weight, int4_group(weight.shape[1]))
        case "none":
            raise ValueError("quantization none is no form")


def _sibling(part: TensorPart, kind: str) -> str:
    """`...q_proj.weight` -> `...q_proj.qweight`"""
    return f"{part.name.removesuffix('weight')}{kind}"
