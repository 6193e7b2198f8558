"""What a deployment may use of this machine: cores, free memory, GPUs, and the parts of Slipstream that are there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slipstream.kernels.cpu.native_library import why_not_native
from slipstream.kv_transfer.ucx.ucx_availability import has_ucx
from slipstream.router.process.container_limits import memory_rooms, num_cores

MIB = 2**20
GPU_QUERY = ("--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits")
QUERY_TIMEOUT_S = 20.0  # the first call after a boot loads the driver


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is free to take now. `gpu_bytes` is the free memory of each GPU that PyTorch can use; `num_unused_gpus` are
    those that it cannot, because it is built for the CPU. `has_kernels`: the native CPU kernels run here."""

    num_cores: int
    memory_bytes: int
    gpu_bytes: tuple[int, ...] = ()
    num_unused_gpus: int = 0
    has_kernels: bool = True
    has_ucx: bool = True


def read_machine() -> MachineFacts:
    gpus = free_gpu_bytes()
    sees_gpus = torch_cuda() is not None
    return MachineFacts(
        num_cores=num_cores(),
        memory_bytes=free_memory_bytes(),
        gpu_bytes=gpus if sees_gpus else (),
        num_unused_gpus=0 if sees_gpus else len(gpus),
        has_kernels=why_not_native() is None,
        has_ucx=has_ucx(),
    )


def free_memory_bytes(root: Path = Path("/")) -> int:
    """MemAvailable, or what the limits of the container leave, if that is less."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    rooms = list(memory_rooms(root))
    if found is not None:
        rooms.append(int(found[1]) * 1024)
    return max(0, min(rooms, default=0))


def free_gpu_bytes() -> tuple[int, ...]:
    """The free memory of each NVIDIA GPU that this process may use; empty where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        done = subprocess.run(
            [tool, *GPU_QUERY], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return visible_gpus(done.stdout, os.environ.get("CUDA_VISIBLE_DEVICES")) if done.returncode == 0 else ()


def visible_gpus(listed: str, visible: str | None) -> tuple[int, ...]:
    """The free bytes of the GPUs in `nvidia-smi`'s lines "index, uuid, MiB" that CUDA_VISIBLE_DEVICES names, by index
    or by the beginning of the UUID; None: all. As CUDA does, what follows the first unknown name does not count."""
    gpus = []
    for line in listed.splitlines():
        index, uuid, free_mib = (*(field.strip() for field in line.split(",")), "", "")[:3]
        if free_mib.isdigit():  # "[N/A]" where a GPU is cut into instances
            gpus.append((index, uuid, int(free_mib) * MIB))
    if visible is None:
        return tuple(num_bytes for _, _, num_bytes in gpus)
    found: list[int] = []
    for name in (part.strip() for part in visible.split(",")):
        match = next((gpu for gpu in gpus if name and (name == gpu[0] or gpu[1].startswith(name))), None)
        if match is None:
            break
        found.append(match[2])
    return tuple(found)


def torch_cuda() -> str | None:
    """The version of CUDA that PyTorch is built for; None: it is built for the CPU. Read from its files, because
    importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return found[1] if found is not None else None
