"""Profiles of hardware that has not been measured here: from what its data sheet allows and how much of that is
reached.

    python -m slipstream.cluster.tools.sim.hardware.roofline        writes configs/profiles/h200-*.json anew

Prefill is bound by arithmetic, decode by memory: a step reads the weights once and the KV of all that decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile, WorkerRoleProfile

PROFILES = Path(__file__).resolve().parents[4] / "configs" / "profiles"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU; `*_share` of its peaks are what kernels reach."""

    name: str
    flops: float  # bf16, dense
    flops_share: float
    memory_bytes: float
    memory_bytes_per_s: float
    memory_share: float
    network_bytes_per_s: float  # of its network card, as reached


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """A dense Llama in bf16."""

    name: str
    num_parameters: float
    num_layers: int
    hidden_size: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int = 131_072

    @property
    def kv_bytes_per_token(self) -> int:
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 2

    @property
    def weight_bytes(self) -> float:
        return 2 * self.num_parameters


H200 = Device("H200", 989e12, 0.5, 141e9, 4.8e12, 0.8, 40e9)
LLAMA_8B = LlamaShape("llama-8b", 8.03e9, 32, 4096, 8, 128)
LLAMA_70B = LlamaShape("llama-70b", 70.6e9, 80, 8192, 8, 128)

LAUNCH_S = 5e-4  # of a step, whatever is in it
ALL_REDUCE_S = 1.5e-5  # of one of the two of a layer
ATTENTION_FLOPS_SHARE = 0.7  # of what matrix products reach
POOL_SHARE = 0.9  # of the memory, for weights, activations and pages
ACTIVATION_BYTES = 8e9
PAGE_TOKENS = 16


def roofline(device: Device, model: LlamaShape, gpus: int = 1) -> WorkerProfile:
    """A worker of `gpus` devices that split each layer."""
    flops = device.flops * device.flops_share * gpus * (0.9 if gpus > 1 else 1.0)
    bandwidth = device.memory_bytes_per_s * device.memory_share * gpus
    fixed_s = LAUNCH_S + (model.num_layers * 2 * ALL_REDUCE_S if gpus > 1 else 0.0)
    token_s = 2 * model.num_parameters / flops
    pool_bytes = (device.memory_bytes * POOL_SHARE - ACTIVATION_BYTES) * gpus - model.weight_bytes

    def role(max_slots: int, max_step_tokens: int) -> WorkerRoleProfile:
        return WorkerRoleProfile(
            decode_step_s=_rounded(model.weight_bytes / bandwidth + fixed_s),
            decode_seq_s=_rounded(token_s),
            decode_context_token_s=_rounded(model.kv_bytes_per_token / bandwidth),
            prefill_chunk_s=_rounded(2 * fixed_s),
            prefill_token_s=_rounded(token_s),
            prefill_pair_s=_rounded(4 * model.hidden_size * model.num_layers / (flops * ATTENTION_FLOPS_SHARE)),
            max_slots=max_slots,
            max_step_tokens=max_step_tokens,
            max_queued_tokens=131_072,
        )

    times = "x" + str(gpus) if gpus > 1 else ""
    return WorkerProfile(
        name=f"{device.name.lower()}{times}-{model.name}",
        source=f"roofline, nothing measured: {gpus} x {device.name} at {device.flops_share:.0%} of its arithmetic and "
        f"{device.memory_share:.0%} of its memory bandwidth, {model.name} in bf16, one 400 Gb/s card a worker at 80%",
        prefill=role(1024, 8192),
        decode=role(256, 2048),
        page_tokens=PAGE_TOKENS,
        num_pages=int(pool_bytes / model.kv_bytes_per_token / PAGE_TOKENS) // 1000 * 1000,
        max_model_len=model.max_model_len,
        num_layers=model.num_layers,
        kv_bytes_per_token=model.kv_bytes_per_token,
        link_bytes_per_s=device.network_bytes_per_s,
        start_s=60.0 if gpus == 1 else 150.0,
        gpus=gpus,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


SHIPPED = ((H200, LLAMA_8B, 1), (H200, LLAMA_70B, 4))

if __name__ == "__main__":
    for device, model, gpus in SHIPPED:
        profile = roofline(device, model, gpus)
        profile.write(PROFILES / f"{profile.name}.json")
