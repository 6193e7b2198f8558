"""A choice as a configuration file, and as a table for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slipstream.cluster.sizing.machine_facts import MachineFacts
from slipstream.cluster.sizing.model_size import ModelFacts
from slipstream.cluster.sizing.pool_choice import GIB, PoolChoice, SizingChoice
from slipstream.cluster.sizing.target_type import Target

GPU_TLS = "posix,self,tcp,cuda_copy,cuda_ipc"  # pages stay on the GPUs
PREFILL_STEP_TOKENS, MIXED_STEP_TOKENS = 8192, 2048  # on a GPU; mixed: beside decoding
PREFILL_QUEUE_TOKENS = 65536


def settings_of(choice: SizingChoice, model: Target) -> dict[str, Any]:
    """The settings, without those that are as by default."""
    is_gpu = choice.device == "cuda"
    engine = {
        "device": choice.device,
        "max_model_len": choice.max_model_len,
        "max_num_seqs": choice.max_num_seqs,
    }
    settings: dict[str, Any] = {"model": {"path": str(model)}, "ray": {"address": "local"}, "engine": engine}
    if isinstance(model, Path) and (name := name_in_hub_cache(model)) is not None:
        settings["model"]["name"] = name
    if is_gpu:
        settings["kv_transfer"] = {"tls": GPU_TLS}
    for role, pool in (("prefill", choice.prefill), ("decode", choice.decode)):
        settings[role] = _pool(pool, choice)
    if is_gpu and choice.prefill.replicas:
        settings["prefill"]["max_queued_tokens"] = PREFILL_QUEUE_TOKENS
        settings["prefill"]["engine"]["max_step_tokens"] = PREFILL_STEP_TOKENS
    elif is_gpu:
        settings["decode"]["engine"]["max_step_tokens"] = MIXED_STEP_TOKENS
    return settings


def config_text(choice: SizingChoice, machine: MachineFacts, model: Target) -> str:
    """The file, which `slipstream serve` takes."""
    lines = [
        f"# Chosen by Slipstream for {machine_in_words(machine)}.",
        "# What is not named here is as by default. ray.address local: a Ray of its own, on this machine.",
        *(f"# {note[0].upper()}{note[1:]}." for note in choice.notes),
        "",
    ]
    return "\n".join(lines) + yaml.safe_dump(settings_of(choice, model), sort_keys=False, allow_unicode=True)


def table(choice: SizingChoice, machine: MachineFacts, model: ModelFacts) -> list[str]:
    """What was chosen, a line for each part."""
    prefill = _pool_in_words(choice.prefill, choice) if choice.prefill.replicas else "none: decode computes prompts"
    pool_bytes = choice.decode.kv_cache_mib * choice.tp * 2**20
    room = f"{pool_bytes // model.kv_token_bytes:,} tokens" if model.kv_token_bytes else ""
    room = room or f"{pool_bytes // model.state_bytes:,} sequences"
    rows = [
        ("machine", machine_in_words(machine)),
        ("weights", f"{_size(model.weight_bytes)}, {model.dtype}"),
        ("prefill", prefill),
        ("decode", f"{_pool_in_words(choice.decode, choice)}, {room}"),
        ("context", f"{choice.max_model_len:,} tokens; {choice.max_num_seqs} sequences at a time in a worker"),
        *(("note", note) for note in choice.notes),
    ]
    return [f"  {name:<9}{value}" for name, value in rows]


def machine_in_words(machine: MachineFacts) -> str:
    gpus = "no GPU"
    if machine.gpu_bytes:
        gpus = f"{len(machine.gpu_bytes)} GPU with {_size(min(machine.gpu_bytes))} free"
    cores = f"{machine.num_cores} core{'s' * (machine.num_cores > 1)}"
    return f"{cores}, {_size(machine.memory_bytes)} of free memory, {gpus}"


def name_in_hub_cache(model_dir: Path) -> str | None:
    """The name of a model in Hugging Face's cache, .../models--OWNER--NAME/snapshots/COMMIT, whose folder is no name;
    None: the folder's name does."""
    parents = model_dir.parents
    if len(parents) < 2 or parents[0].name != "snapshots" or not parents[1].name.startswith("models--"):
        return None
    return parents[1].name.removeprefix("models--").replace("--", "/")


def _pool(pool: PoolChoice, choice: SizingChoice) -> dict[str, Any]:
    if not pool.replicas:
        return {"replicas": 0}
    settings: dict[str, Any] = {"replicas": pool.replicas, "engine": {"kv_cache_mib": pool.kv_cache_mib}}
    if choice.tp > 1:
        settings["tp"] = choice.tp
    if choice.device == "cuda":
        settings["num_gpus"] = 1
    if pool.num_threads is not None:
        settings["engine"]["num_threads"] = pool.num_threads
    return settings


def _pool_in_words(pool: PoolChoice, choice: SizingChoice) -> str:
    workers = f"{pool.replicas} worker{'s' * (pool.replicas > 1)}"
    if choice.device == "cuda":
        means = f"on {choice.tp} GPUs each" if choice.tp > 1 else "on a GPU each" if pool.replicas > 1 else "on a GPU"
    elif pool.num_threads is None:
        means = "on all cores"
    else:
        means = f"with {pool.num_threads} threads" + (" each" if pool.replicas > 1 else "")
    each = "each " if pool.replicas * choice.tp > 1 else ""
    return f"{workers} {means}; KV pages {each}{_size(pool.kv_cache_mib * 2**20)}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes // 2**20} MiB"
