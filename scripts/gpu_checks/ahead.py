"""Compiles what the steps after this one launch, on all cores, into Triton's cache: one after the other these kernels
take minutes of one core, which the steps would be cut off for.

Nothing runs: the tensors are on the meta device, and what the wrappers would launch is only compiled, for the GPU that
is here. What fails to compile fails again, and is reported, where it is launched.

    ahead.py SHARE OF        compiles every OF-th launch, from number SHARE on
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_checks.engine import FULL
from gpu_checks.kernels import cases
from gpu_checks.setting import Setting
from gpu_checks.shapes import FORMS, SHAPES, Form, random_model, random_pool, read_config
from gpu_checks.subject import PAGE_TOKENS

from slipstream.kernels.attention.device_inputs import DeviceInputs
from slipstream.workers.engine.execution.gpu.batch_buckets import batch_buckets
from slipstream.workers.engine.execution.gpu.gpu_runner import SHORT_PROMPT_TOKENS

STEP = "compiling"
MOST_S = 75.0
META = torch.device("meta")
Launch = Callable[[], object]


def run(setting: Setting) -> None:
    if importlib.util.find_spec("triton") is None:
        setting.add(STEP, "all", note="skipped: triton is not installed")
        return
    num_processes = 1 if setting.is_dry else os.cpu_count() or 1
    # A dry run looks through all launches and compiles none.
    num_shares = sys.maxsize if setting.is_dry else num_processes
    begun = time.perf_counter()
    path = f"{Path(__file__).resolve().parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": path}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(share), str(num_shares)], env=environment)
        for share in range(num_processes)
    ]
    late = 0
    for process in processes:
        try:
            process.wait(max(0.1, MOST_S - (time.perf_counter() - begun)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            late += 1
    failed = sum(process.returncode > 0 for process in processes)
    note = f"{num_processes} processes, {late} not done in {MOST_S:.0f} s, {failed} with errors"
    setting.add(STEP, "kernels compiled ahead", time.perf_counter() - begun, "s", note=note, failed=failed > 0)


def launches() -> Iterator[Launch]:
    """One after the other, of similar size."""
    for _, case in cases():
        yield lambda case=case: case.setup(META)()
    for shape in SHAPES:
        for form in FORMS:
            yield from _steps(shape, form)


def _steps(shape: str, form: Form) -> Iterator[Launch]:
    """Of an engine: every bucket of decoding, and prompts."""
    for num_seqs in reversed(batch_buckets(max(seqs for seqs, _ in FULL.decode))):
        yield partial(_step, shape, form, num_seqs, 1)
    for num_tokens in (FULL.prefill, SHORT_PROMPT_TOKENS):
        yield partial(_step, shape, form, 1, num_tokens)


def _step(shape: str, form: Form, num_seqs: int, query_len: int) -> None:
    ops = importlib.import_module("slipstream.kernels.gpu.triton_ops").TritonOps()
    sampling = importlib.import_module("slipstream.kernels.sampling.gpu.sampling")
    config = read_config(shape)
    model = random_model(config, ops, META, fp8=form.fp8_weights)
    kv = random_pool(config, form, 64, PAGE_TOKENS, META)
    num_tokens = num_seqs * query_len

    def ints(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=META)

    table = ints(num_seqs, -(-max(FULL.num_tokens, query_len) // PAGE_TOKENS))
    num_decodes = num_seqs if query_len == 1 else 0
    inputs = DeviceInputs(
        ints(num_tokens), ints(num_tokens), ints(num_seqs + 1), ints(num_seqs), table, num_decodes, query_len, query_len
    )
    step = ops.begin_device_step(inputs, model.decoder.attention, kv)
    hidden = model.decoder.run(ints(num_tokens), step)
    logits = model.logits(hidden[:num_seqs])
    assert logits is not None
    sampling.sample(logits, None)


def compile_share(share: int, num_shares: int) -> int:
    """Returns how many could not be compiled."""
    _compile_only()
    failed = 0
    for index, launch in enumerate(launches()):
        if index % num_shares == share and num_shares < sys.maxsize:
            try:
                launch()
            except Exception:  # whatever is wrong with one kernel, the others are still to be compiled
                traceback.print_exc()
                failed += 1
    return failed


def _compile_only() -> None:
    """Launches compile, for the device that is here or else for an H100, and do no more."""
    compiler: Any = importlib.import_module("triton.backends.compiler")
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    jit: Any = importlib.import_module("triton.runtime.jit")
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)

    class Driver:
        def get_current_target(self) -> Any:
            return compiler.GPUTarget("cuda", 10 * major + minor, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    driver.set_active(Driver())
    launch = jit.JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **kwargs)

    jit.JITFunction.run = compile_only


if __name__ == "__main__":
    sys.exit(min(100, compile_share(int(sys.argv[1]), int(sys.argv[2]))))
