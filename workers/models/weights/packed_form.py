"""The form in which the native kernels hold a linear layer, and how its numbers get there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from slipstream.kernels.cpu.c_interface import Scalar, SourceRows, WeightKind
from slipstream.kernels.quantization.quantized_weight import Fp8Weight, Int8Weight, QuantizedWeight, dequantize
from slipstream.workers.models.directory.stored_quantization import INT4_GROUP, AwqStored, Fp8Stored, GptqStored, OnLoad
from slipstream.workers.models.sharding.rank_share import LinearShare
from slipstream.workers.models.weights.checkpoint import Checkpoint
from slipstream.workers.models.weights.quantized_reader import QuantizedReader, quantized_on_load

SCALARS = {torch.float32: Scalar.F32, torch.bfloat16: Scalar.BF16, torch.float16: Scalar.F16}
KINDS = {torch.float32: WeightKind.F32, torch.bfloat16: WeightKind.BF16}
GROUP_STEP = 32  # the kernels support groups of multiples of so many inputs


@dataclass(frozen=True, slots=True)
class PackedForm:
    """`group` consecutive inputs share a scale. 0: all inputs of an output do, or there are no scales."""

    kind: WeightKind
    group: int = 0


@dataclass(frozen=True, slots=True)
class LinearReader:
    """Reads linear layers of a checkpoint in the form that the model will use: quantised as they are stored or as
    `on_load` says; or, if the kernels do not support that form, widened to the model's `dtype`."""

    checkpoint: Checkpoint
    dtype: torch.dtype  # float32 or bfloat16
    quantized: QuantizedReader | None
    on_load: OnLoad

    def form(self, share: LinearShare) -> PackedForm:
        """The form of a layer, which is found out without reading the weights."""
        kind, group = self._stored_form(share) or self._form_on_load(share) or (KINDS[self.dtype], 0)
        group = 0 if group >= share.num_columns else group
        return PackedForm(kind, group) if group % GROUP_STEP == 0 else PackedForm(KINDS[self.dtype])

    def rows(self, share: LinearShare, form: PackedForm, keep: list[Tensor]) -> Iterator[SourceRows]:
        """The rows of each part of `share`. They point into tensors that are added to `keep`. Raises ModelError."""
        weight = None if self.quantized is None else self.quantized.read(share)
        if weight is None and self.on_load != "none":
            plain = [self.checkpoint.mapped(part).to(self.dtype) for part in share.weights]
            weight = quantized_on_load(torch.cat(plain), self.on_load)
        if weight is None:
            for part in share.weights:
                yield _plain_rows(self.checkpoint.mapped(part), keep)
            return
        widened = dequantize(weight, self.dtype) if form.kind == KINDS[self.dtype] else None
        first = 0
        for part in share.weights:
            rows = slice(first, first + part.num_rows)
            yield _plain_rows(widened[rows], keep) if widened is not None else _quantized_rows(weight, rows, keep)
            first = rows.stop

    def _stored_form(self, share: LinearShare) -> tuple[WeightKind, int] | None:
        if self.quantized is None or not self.quantized.is_quantized(share):
            return None
        match self.quantized.stored:
            case Fp8Stored(block=block):
                return WeightKind.FP8, 0 if block is None else block[1]
            case GptqStored() if self.quantized.is_reordered(share):
                return KINDS[self.dtype], 0  # the kernels take inputs as they come
            case GptqStored(group_size=group_size) | AwqStored(group_size=group_size):
                return WeightKind.INT4, group_size or 0

    def _form_on_load(self, share: LinearShare) -> tuple[WeightKind, int] | None:
        match self.on_load:
            case "fp8":
                return WeightKind.FP8, 0
            case "int8":
                return WeightKind.INT8, 0
            case "int4":
                return WeightKind.INT4, gcd(share.num_columns, INT4_GROUP)
            case "none":
                return None


def _plain_rows(stored: Tensor, keep: list[Tensor]) -> SourceRows:
    if stored.dtype not in SCALARS:
        stored = stored.float()
    if stored.stride(1) != 1:
        stored = stored.contiguous()
    keep.append(stored)
    return SourceRows(
        outputs=stored.shape[0], values=stored.data_ptr(), stride=stored.stride(0), values_type=SCALARS[stored.dtype]
    )


def _quantized_rows(weight: QuantizedWeight, rows: slice, keep: list[Tensor]) -> SourceRows:
    codes, scales = weight.codes[rows], weight.scales
    outputs_of_scale = weight.block[0] if isinstance(weight, Fp8Weight) else 1
    if isinstance(weight, Int8Weight):
        scales = scales[:, None]
    if scales.dtype not in SCALARS:
        scales = scales.float()
    scales = scales[rows.start // outputs_of_scale :]
    keep += [codes, scales]
    source = SourceRows(outputs=codes.shape[0], values=codes.data_ptr(), stride=codes.stride(0))
    source.scales, source.scales_type, source.scales_stride = scales.data_ptr(), SCALARS[scales.dtype], scales.stride(0)
    source.scale_outputs, source.scale_first = outputs_of_scale, rows.start % outputs_of_scale
    if not isinstance(weight, Fp8Weight | Int8Weight):
        zeros = weight.zeros[rows]
        keep.append(zeros)
        source.zeros, source.zeros_stride = zeros.data_ptr(), zeros.stride(0)
    return source
