"""Compiles kernels for an H200 on a machine without one: launches are turned into compilations.

    TRITON_INTERPRET=0 python -m tests.support.kernels.sm90 MODULE ...

Of a module of this folder, `launches()` gives calls by name; of a kernel's file, its benchmark and tuning cases are
taken. The tensors are on the meta device: what the wrappers launch then is what they would launch on a GPU, in the same
shapes and constants. Prints a JSON line for each kernel compiled, with its resources as ptxas reports them, and which
instructions for matrices its PTX has: to look for what the machine code has instead of them, HGMMA and HMMA, would take
half a second a kernel.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

SHARED_MEMORY_BYTES = 227 * 1024  # that a program can have
REGISTERS_PER_MULTIPROCESSOR = 65536
Launches = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Resources:
    launch: str
    kernel: str
    num_warps: int
    registers: int  # a thread
    stack_bytes: int  # a thread: spilled registers and arrays
    shared_bytes: int
    matrix_instructions: str  # "wgmma.mma_async" (Hopper's own), "mma.sync", or none
    compile_s: float

    @property
    def programs_per_multiprocessor(self) -> int:
        by_registers = REGISTERS_PER_MULTIPROCESSOR // (max(self.registers, 1) * 32 * self.num_warps)
        by_shared = (SHARED_MEMORY_BYTES + 1024) // (self.shared_bytes + 1024)
        return min(by_registers, by_shared, 64 // self.num_warps)


class CompileOnly:
    """What Triton asks of a device while it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_launches(launches: Launches) -> Iterator[Resources]:
    driver.set_active(CompileOnly())
    run = JITFunction.run
    compiled: list[Any] = []

    @functools.wraps(run)
    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append(kernel)
        return kernel

    JITFunction.run = compile_only  # type: ignore[method-assign]
    seen = set()
    for name, launch in launches.items():
        started = time.perf_counter()
        launch()
        elapsed = time.perf_counter() - started
        for kernel in compiled:
            if kernel.hash not in seen:
                seen.add(kernel.hash)
                yield resources_of(name, kernel, elapsed)
        compiled.clear()


def resources_of(launch: str, kernel: Any, compile_s: float) -> Resources:
    usage = _resource_usage(kernel.asm["cubin"])
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    instructions = [
        name for name in ("wgmma.mma_async", "mma.sync") if re.search(rf"^\s*{name}\b", kernel.asm["ptx"], re.M)
    ]
    return Resources(
        launch,
        kernel.metadata.name,
        kernel.metadata.num_warps,
        int(found[1]),
        int(found[2]),
        kernel.metadata.shared,
        " ".join(instructions),
        round(compile_s, 2),
    )


def _resource_usage(cubin: bytes) -> str:
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [program, "--dump-resource-usage", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def launches_of(module: Any) -> Launches:
    functions = vars(module)
    if "launches" in functions:
        launches: Launches = functions["launches"]()
        return launches
    names = ("benchmark_cases", "tune_cases")
    cases = [case for name in names if name in functions for case in functions[name]()]
    return {case.name: lambda case=case: case.setup(torch.device("meta"))() for case in cases}


def main() -> None:
    for module in sys.argv[1:]:
        for resources in compile_launches(launches_of(importlib.import_module(module))):
            print(json.dumps(asdict(resources)), flush=True)


if __name__ == "__main__":
    main()
