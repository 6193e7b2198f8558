"""Loads a model into memory: each rank reads its share of each tensor, fusing and casting it on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.linear.packed_linear import pack_weight
from slipstream.kernels.moe.gate import ExpertGate
from slipstream.kernels.moe.grouped_experts import ExpertWeights
from slipstream.kernels.ops import TorchOps, Weight
from slipstream.kernels.quantization.quantized_weight import QuantizedWeight, dequantize
from slipstream.workers.models.directory.model_config import DtypeName, ModelConfig
from slipstream.workers.models.directory.stored_quantization import OnLoad
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.interface.weight_source import Linear
from slipstream.workers.models.ops_model import OpsModel
from slipstream.workers.models.registry import FAMILIES
from slipstream.workers.models.sharding.rank_share import ExpertsShare, LinearShare, RankShare, TensorPart
from slipstream.workers.models.sharding.tensor_check import checked_names
from slipstream.workers.models.weights.checkpoint import Checkpoint, open_checkpoint
from slipstream.workers.models.weights.quantized_reader import QuantizedReader, quantized_on_load

TORCH_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    model_dir: Path | str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    tp: TensorParallel | None = None,
    quantization: OnLoad = "none",
    keep_codes: bool | None = None,
    expert_parallel: bool = False,
) -> OpsModel:
    """Loads a local directory in Hugging Face layout (config.json and safetensors).

    `dtype` None takes the one that config.json names; `tp` None is a group of one. `quantization` is what to make of
    the linear layers that the checkpoint has not quantised, the output layer excepted. With `keep_codes` quantised
    weights stay codes, for kernels that read these; without, they are widened here once, because torch's products
    would do it in each call. None: they stay codes on GPUs. `expert_parallel`: see `RankShare.of`. Raises ModelError.
    """
    model_dir = Path(model_dir)
    config = ModelConfig.read(model_dir)
    tp = TensorParallel() if tp is None else tp
    share = RankShare.of(config, tp, checked_names(config, model_dir), expert_parallel=expert_parallel)
    with open_checkpoint(model_dir) as checkpoint:
        device = torch.device(device)
        quantized = None if config.quantization is None else QuantizedReader(checkpoint, config.quantization)
        source = TensorSource(
            checkpoint,
            dtype or TORCH_DTYPES[config.dtype],
            device,
            quantized,
            quantization,
            device.type != "cpu" if keep_codes is None else keep_codes,
        )
        return OpsModel(config, FAMILIES[config.family](config, share, source, tp, TorchOps()), tp)


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A `WeightSource` of tensors on `device`, for the ops of torch and Triton."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    quantized: QuantizedReader | None
    quantization: OnLoad
    keep_codes: bool

    def vector(self, part: TensorPart, *, plus: float = 0.0) -> Tensor:
        return self._vectors([part], plus)

    def head_vectors(self, parts: list[TensorPart], *, plus: float = 0.0) -> Tensor:
        return self._vectors(parts, plus).view(len(parts), -1)

    def linear(self, share: LinearShare, *, gated: bool = False) -> Linear:
        del gated  # gate and up lie one below the other
        biases = None if share.biases is None else self._stacked(*share.biases)
        return Linear(self._weight(share), biases)

    def router(self, share: LinearShare) -> Linear:
        biases = None if share.biases is None else self._stacked(*share.biases)
        return Linear(pack_weight(self._stacked(*share.weights)), biases)

    def experts(self, share: ExpertsShare, gate: ExpertGate) -> ExpertWeights:
        """Quantised ones are widened, as no op of torch or Triton reads stacks of codes."""
        return ExpertWeights(
            gate_up=torch.stack([self._widened(linear) for linear in share.gate_up]),
            down=torch.stack([self._widened(linear) for linear in share.down]),
            gate_up_bias=self._expert_biases(share.gate_up),
            down_bias=self._expert_biases(share.down),
            gate=gate,
            first=share.first,
        )

    def embedding(self, part: TensorPart, num_rows: int) -> Tensor:
        weight = torch.zeros(num_rows, part.num_columns, dtype=self.dtype, device=self.device)
        self.checkpoint.copy_into(weight[: part.num_rows], part)
        return weight

    def output_layer(self, part: TensorPart, num_rows: int, embedding: Tensor, *, is_tied: bool) -> Weight:
        lm_head = embedding if is_tied else self.embedding(part, num_rows)
        return pack_weight(embedding if torch.equal(lm_head, embedding) else lm_head)  # it may be stored twice

    def _weight(self, share: LinearShare) -> Weight:
        weight = self._read(share)
        if isinstance(weight, Tensor):
            return pack_weight(weight)
        return weight if self.keep_codes else pack_weight(dequantize(weight, self.dtype))

    def _widened(self, share: LinearShare) -> Tensor:
        weight = self._read(share)
        return weight if isinstance(weight, Tensor) else dequantize(weight, self.dtype)

    def _read(self, share: LinearShare) -> Tensor | QuantizedWeight:
        weight: Tensor | QuantizedWeight | None = None if self.quantized is None else self.quantized.read(share)
        if weight is None:
            weight = self._stacked(*share.weights)
            if self.quantization != "none":
                weight = quantized_on_load(weight, self.quantization)
        return weight if isinstance(weight, Tensor) else weight.to(self.device)

    def _expert_biases(self, shares: tuple[LinearShare, ...]) -> Tensor | None:
        biases = [self._stacked(*share.biases) for share in shares if share.biases is not None]
        return torch.stack(biases) if biases else None

    def _vectors(self, parts: list[TensorPart], plus: float) -> Tensor:
        stacked = self._stacked(*parts)
        return stacked if plus == 0 else stacked.float().add_(plus)

    def _stacked(self, *parts: TensorPart) -> Tensor:
        """Parts of equal width, one below the other."""
        columns = () if parts[0].is_vector else (parts[0].num_columns,)
        num_rows = sum(part.num_rows for part in parts)
        stacked = torch.empty((num_rows, *columns), dtype=self.dtype, device=self.device)
        first = 0
        for part in parts:
            self.checkpoint.copy_into(stacked[first : first + part.num_rows], part)
            first += part.num_rows
        return stacked
