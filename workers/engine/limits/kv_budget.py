"""How much memory the KV pages of a rank may take.

    host    MemAvailable, or what a memory cgroup around this process leaves, if that is less
    GPU     what the driver reports as free

`kv_cache_mib: auto` takes a share of what is free once the weights are loaded, but no more than `max_num_seqs`
sequences of full length can fill. On the host, the share is divided among the ranks that start together.
"""

from __future__ import annotations

from pathlib import Path

import torch

from slipstream.router.process.container_limits import memory_rooms
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.models.directory.weight_files import weight_file_names

HOST_SHARE = 0.5  # the rest is for everybody else, and for the growth of the workers' own processes
GPU_SHARE = 0.9  # the rest is for activations and graphs; the same as vLLM's gpu_memory_utilization
MIB = 2**20


def available_bytes(device: torch.device) -> int:
    """Memory that could be allocated on `device` now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return host_available_bytes()


def host_available_bytes(root: Path = Path("/")) -> int:
    """MemAvailable, or less where a control group allows less. `root` is where proc and sys are mounted."""
    available = _fields(root / "proc/meminfo")["MemAvailable"] * 1024
    return max(0, min([available, *memory_rooms(root)]))


def auto_num_pages(
    device: torch.device, model_dir: Path, *, tp_size: int, ranks_on_host: int, page_bytes: int, max_useful: int
) -> int:
    """Pages for a rank whose weights are not loaded yet. Raises EngineConfigError if there is no room for one."""
    weight_bytes = sum((model_dir / file).stat().st_size for file in weight_file_names(model_dir)) // tp_size
    room = available_bytes(device) - weight_bytes
    share = GPU_SHARE if device.type == "cuda" else HOST_SHARE / ranks_on_host
    num_pages = int(share * room) // page_bytes
    if num_pages < 1:
        raise EngineConfigError(
            f"kv_cache_mib auto: beside {weight_bytes // MIB} MiB of weights there are {max(0, room) // MIB} MiB left "
            f"on {device}, of which {share:.0%} do not hold a page of {page_bytes} bytes"
        )
    return min(num_pages, max_useful)


def require_room(key: str, pool_bytes: int, device: torch.device) -> None:
    """Raises EngineConfigError, naming `key`, if a pool of KV pages does not fit. On the host, too large an allocation
    would not fail; instead, the kernel would kill some process once the memory is used."""
    room = available_bytes(device)
    if pool_bytes > room:
        raise EngineConfigError(
            f"{key} asks for {pool_bytes / MIB:.0f} MiB of KV pages, and {room / MIB:.0f} MiB are free on {device}"
        )


def _fields(path: Path) -> dict[str, int]:
    """The numbers in a file, by the names at the beginning of its lines."""
    fields = {}
    for line in path.read_text().splitlines():
        name, number, *_ = line.split()
        fields[name.rstrip(":")] = int(number)
    return fields
