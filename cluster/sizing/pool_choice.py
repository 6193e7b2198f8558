"""Chooses pools and page memory for a model on a machine: a pure function of the facts about both.

    no GPU     one core, or memory for one worker only    1 decode worker, which computes prompts, too
               up to 8 cores                              1 prefill, 1 decode; each may use all cores (they take turns)
               more                                       decode gets half of the cores, prefill groups share the others
    GPUs       tp is the least that leaves room for pages
               one group                                  1 decode worker, which computes prompts, too
               more                                       a quarter of the groups prefill

Half of the host memory that weights and processes leave goes to KV pages, but no more than `TYPICAL_TOKENS` for each of
`max_num_seqs` sequences, or one of the model's full length, can fill. Half of that is for decode. On a GPU, pages take
0.9 of what is free (as `workers.engine.kv_budget`), less the weights and `GPU_RESERVE_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.cluster.sizing.machine_facts import MIB, MachineFacts
from slipstream.cluster.sizing.model_size import ModelFacts
from slipstream.kv_transfer.ucx.ucx_availability import MISSING

GIB = 1024 * MIB
CLUSTER_BYTES = 800 * MIB  # Ray, its object store, the driver, its guardian and the router
WORKER_BYTES = 400 * MIB  # Python and PyTorch, before weights and pages
GPU_RESERVE_BYTES = 2 * GIB  # CUDA's own, activations, recorded graphs
GPU_SHARE = 0.9
HOST_SHARE = 0.5
SHARING_CORES = 8  # as in `workers.engine.build`: up to so many, each worker may use all of them
MAX_DECODE_THREADS = 32  # a step reads all weights, and so many cores saturate the memory of a socket
MAX_PREFILL_THREADS = 16
MIB_STEP = 16
PAGE_TOKENS = 16
TYPICAL_TOKENS = 2048
LEAST_CONTEXT = 1024  # or the model's, if that is less: with a shorter one it is of no use
GOOD_CONTEXT = 4096  # a prefill worker is given up for it
NUM_SEQS, GPU_NUM_SEQS = 64, 256


class CannotServe(Exception):  # noqa: N818 - reads as the sentence it carries
    """The model does not fit on the machine. The text is one sentence, with figures."""


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """`num_threads` None: as many as there are cores. `kv_cache_mib` is that of a rank."""

    replicas: int
    num_threads: int | None = None
    kv_cache_mib: int = 0


@dataclass(frozen=True, slots=True)
class SizingChoice:
    """A deployment. `tp` is that of both pools. `notes` are sentences about what one might not expect."""

    device: Literal["cpu", "cuda"]
    prefill: PoolChoice
    decode: PoolChoice
    max_model_len: int
    max_num_seqs: int
    tp: int = 1
    notes: tuple[str, ...] = ()


def choose(machine: MachineFacts, model: ModelFacts) -> SizingChoice:
    """Raises CannotServe."""
    return _on_gpus(machine, model) if machine.gpu_bytes else _on_cpu(machine, model)


def _on_cpu(machine: MachineFacts, model: ModelFacts) -> SizingChoice:
    threads, prefill_threads = _threads(machine.num_cores)
    is_shared = machine.has_kernels and model.is_native
    weight_bytes = model.weight_bytes if is_shared else model.widened_bytes
    for num_prefill in range(len(prefill_threads), -1, -1):
        num_workers = num_prefill + 1
        taken = CLUSTER_BYTES + num_workers * WORKER_BYTES + weight_bytes * (1 if is_shared else num_workers)
        for_pages = int(HOST_SHARE * max(0, machine.memory_bytes - taken))
        most = (1, model.max_positions), (NUM_SEQS, TYPICAL_TOKENS)
        useful = _round_up(max(count * model.kv_bytes(length, PAGE_TOKENS) for count, length in most))
        decode_mib = _mib(min(useful, for_pages // 2 if num_prefill else for_pages))
        prefill_mib = _mib(min(useful, for_pages // 2 // num_prefill)) if num_prefill else 0
        smallest_mib = min(decode_mib, prefill_mib) if num_prefill else decode_mib
        context = model.most_tokens(smallest_mib * MIB, PAGE_TOKENS)
        if context >= min(model.max_positions, GOOD_CONTEXT if num_prefill else LEAST_CONTEXT):
            of_prefill = prefill_threads[0] if prefill_threads else None
            return SizingChoice(
                device="cpu",
                prefill=PoolChoice(num_prefill, of_prefill, prefill_mib) if num_prefill else PoolChoice(0),
                decode=PoolChoice(1, threads, decode_mib),
                max_model_len=context,
                max_num_seqs=NUM_SEQS,
                notes=(*_cpu_notes(machine, model), *_shape_notes(context, num_prefill, len(prefill_threads), model)),
            )
    least = min(model.max_positions, LEAST_CONTEXT)
    text = (
        f"it does not fit into memory: of {_gib(machine.memory_bytes)} that are free, its weights take "
        f"{_gib(weight_bytes)} and the processes {_gib(CLUSTER_BYTES + WORKER_BYTES)}; of what is left, half is for KV "
        f"pages, and {least} tokens take {_gib(model.kv_bytes(least, PAGE_TOKENS))}"
    )
    taken = CLUSTER_BYTES + WORKER_BYTES + model.int4_bytes
    if is_shared and HOST_SHARE * (machine.memory_bytes - taken) >= model.kv_bytes(least, PAGE_TOKENS):
        text += f" (with engine.quantization: int4 in a configuration of your own: {_gib(model.int4_bytes)} of weights)"
    raise CannotServe(text)


def _on_gpus(machine: MachineFacts, model: ModelFacts) -> SizingChoice:
    if not machine.has_ucx:
        raise CannotServe(f"with a GPU, KV pages travel by UCX; {MISSING}")
    num_gpus, free = len(machine.gpu_bytes), min(machine.gpu_bytes)
    least = model.kv_bytes(min(model.max_positions, LEAST_CONTEXT), PAGE_TOKENS)
    rooms = {tp: _gpu_room(free, model, tp) for tp in _tensor_parallel(num_gpus, model)}
    fitting = [tp for tp, room in rooms.items() if room * tp >= least]
    if not fitting:
        widest = max(rooms)
        raise CannotServe(
            f"it does not fit on the GPUs: {num_gpus} with {_gib(free)} free on the fullest, and with tp {widest} each "
            f"would hold {_gib(model.weight_bytes // widest)} of weights, {_gib(GPU_RESERVE_BYTES)} of working memory "
            f"and a share of {_gib(least)} for KV pages"
        )
    tp = next((tp for tp in fitting if rooms[tp] >= free // 4), fitting[-1])
    groups = num_gpus // tp
    num_prefill = 0 if groups == 1 else max(1, groups // 4)
    states = max(GPU_NUM_SEQS * model.state_bytes, MIB)  # all that is of use where a sequence has nothing else
    kv_mib = _mib(rooms[tp] if model.kv_token_bytes else min(rooms[tp], states))
    context = model.most_tokens(kv_mib * MIB * tp, PAGE_TOKENS)
    idle = num_gpus - groups * tp
    notes = (f"{idle} of {num_gpus} GPUs stay idle: a group takes {tp}",) if idle else ()
    return SizingChoice(
        device="cuda",
        prefill=PoolChoice(num_prefill, None, kv_mib if num_prefill else 0),
        decode=PoolChoice(groups - num_prefill, None, kv_mib),
        max_model_len=context,
        max_num_seqs=GPU_NUM_SEQS,
        tp=tp,
        notes=(*notes, *_shape_notes(context, num_prefill, num_prefill, model)),
    )


def _threads(num_cores: int) -> tuple[int | None, list[int | None]]:
    """The threads of the decode worker, and of each prefill group; None: as many as there are cores."""
    if num_cores == 1:
        return None, []
    if num_cores <= SHARING_CORES:
        return None, [None]
    decode = min(num_cores // 2, MAX_DECODE_THREADS)
    groups = -(-(num_cores - decode) // MAX_PREFILL_THREADS)
    return decode, [(num_cores - decode) // groups] * groups


def _tensor_parallel(num_gpus: int, model: ModelFacts) -> list[int]:
    """The sizes that a group can have, ascending."""
    sizes = [1 << power for power in range(num_gpus.bit_length())]
    return [tp for tp in sizes if tp <= num_gpus and not any(count % tp for count in model.shared_out)]


def _gpu_room(free: int, model: ModelFacts, tp: int) -> int:
    return max(0, int(GPU_SHARE * free) - model.weight_bytes // tp - GPU_RESERVE_BYTES)


def _mib(num_bytes: int) -> int:
    """Whole MiB, to multiples of `MIB_STEP` where that is a small part."""
    mib = num_bytes // MIB
    return mib - mib % MIB_STEP if mib >= 8 * MIB_STEP else mib


def _round_up(num_bytes: int) -> int:
    """To what `_mib` leaves as it is."""
    step = MIB_STEP * MIB if num_bytes > 8 * MIB_STEP * MIB else MIB
    return -(-num_bytes // step) * step


def _cpu_notes(machine: MachineFacts, model: ModelFacts) -> list[str]:
    notes = []
    if machine.num_unused_gpus:
        notes.append(f"{machine.num_unused_gpus} NVIDIA GPU not used: this PyTorch is built for the CPU")
    if machine.has_kernels and not model.is_native:
        notes.append(model.not_native)
    return notes


def _shape_notes(context: int, num_prefill: int, wanted_prefill: int, model: ModelFacts) -> list[str]:
    notes = list(model.notes)
    if context < model.max_positions:
        notes.append(f"context of {context} tokens, of the model's {model.max_positions}: KV pages hold no more")
    if num_prefill < wanted_prefill:
        notes.append(f"{num_prefill} prefill workers, not {wanted_prefill}: memory does not suffice for more")
    return notes


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
