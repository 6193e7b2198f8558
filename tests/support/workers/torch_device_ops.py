"""What a GPU does in a step, in plain torch on any device, so that the runner around it can be tested without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.kernels.attention.device_inputs import DeviceInputs
from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.elementwise.rotary import rotary_embedding
from slipstream.kernels.ops import AttentionShape, AttentionStep, TorchOps, TorchStep
from slipstream.kernels.pages.kv_pages import write_kv


@dataclass(frozen=True, slots=True)
class HostInputs:
    """`StepInputs` read back from the device."""

    positions: Tensor
    slots: Tensor
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    page_table: Tensor
    fresh_pages: Tensor


@dataclass(frozen=True, slots=True)
class StepWithPadding:
    """Stores only what has a slot."""

    step: TorchStep
    stored: Tensor  # [n] rows

    def write(self, qkv: Tensor, qk_norm: Tensor | None, layer: int, rotary: int = 0) -> Tensor:
        shape, step = self.step.shape, self.step
        qk, values = qkv.view(len(qkv), -1, shape.head_dim).tensor_split((shape.num_heads + shape.num_kv_heads,), 1)
        if qk_norm is not None:
            qk = rms_norm(qk, qk_norm, shape.norm_eps)
        qk = rotary_embedding(qk, *step.angles[rotary])
        keys = qk[self.stored, shape.num_heads :]
        write_kv(step.kv[layer], keys, values[self.stored], step.kv_rows[:, self.stored])
        return qk[:, : shape.num_heads]

    def attend(self, q: Tensor, layer: int, window: int | None, sinks: Tensor | None = None) -> Tensor:
        return self.step.attend(q, layer, window, sinks)


@dataclass
class TorchDeviceOps(TorchOps):
    """Remembers the steps that began, as (rows, sequences that decode, bound of the queries, bound of the keys)."""

    begun: list[tuple[int, int, int, int]] = field(default_factory=list)

    def begin_device_step(self, inputs: DeviceInputs, attention: AttentionShape, kv: Tensor) -> AttentionStep:
        self.begun.append((len(inputs.positions), inputs.num_decodes, inputs.max_query_len, inputs.max_kv_len))
        query_lens = tuple(inputs.query_starts.diff().tolist())
        kv_lens = tuple(inputs.kv_lens.clamp(min=1).tolist())  # padding attends to whatever is there
        assert query_lens[: inputs.num_decodes] == (1,) * inputs.num_decodes
        assert max(query_lens) <= inputs.max_query_len
        assert max(kv_lens) <= inputs.max_kv_len
        page_table = inputs.page_table.long()
        none = torch.empty(0, dtype=torch.int64)
        host = HostInputs(inputs.positions.long(), inputs.slots.long(), query_lens, kv_lens, page_table, none)
        step = self.begin_step(host, attention, kv)
        assert isinstance(step, TorchStep)
        return StepWithPadding(step, (inputs.slots >= 0).nonzero()[:, 0])


class Rerunner:
    """A recorder without graphs: a replay computes again into the tensor of the first time."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.num_recorded = 0
        self.num_replays = 0
        self._fails_at = fails_at

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if self.num_recorded == self._fails_at:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.num_recorded += 1
        out = compute()

        def replay() -> Tensor:
            self.num_replays += 1
            return out.copy_(compute())

        return replay
