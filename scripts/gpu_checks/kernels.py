"""Every kernel's benchmark cases against the ceilings."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_checks.ceilings import Ceilings, ceilings
from gpu_checks.setting import Setting
from gpu_checks.timing import time_calls

from slipstream.kernels.benchmark.benchmark_case import Case

STEP = "kernels"
FOLDER = Path(__file__).resolve().parents[2] / "kernels"
FIRST = ("decode_attention", "prefill_attention", "fp8_linear")  # should the run be cut off


def run(setting: Setting) -> None:
    """One row a case. Begins behind the rows that are there: after a fault on the device, which ends the process, the
    step is begun again and goes on with the next case."""
    known = ceilings(setting)
    if importlib.util.find_spec("triton") is None:
        setting.add(STEP, "all", note="skipped: triton is not installed")
        return
    done = len(setting.book.rows(STEP))
    for module, case in list(cases(setting.tune))[done:]:
        if setting.is_dry:
            setting.add(STEP, case.name, note=f"{module}: {case.num_bytes} bytes, {case.num_flops} FLOPs, not run")
        else:
            _measure(setting, case, known)


def cases(tune: bool = False) -> Iterator[tuple[str, Case]]:
    """(module, case) of all kernel files."""
    paths = sorted(FOLDER.glob("*/gpu/*.py"), key=lambda path: (path.stem not in FIRST, path.stem))
    for path in paths:
        name, family = path.stem, path.parts[-3]
        module: Any = importlib.import_module(f"slipstream.kernels.{family}.gpu.{name}")
        for attribute in ("benchmark_cases", "tune_cases") if tune else ("benchmark_cases",):
            # Files without kernels of their own have neither; only some have anything to tune.
            for case in vars(module).get(attribute, tuple)():
                yield name, case


def _measure(setting: Setting, case: Case, known: Ceilings) -> None:
    print(f"{case.name} ...", flush=True)  # should it hang
    try:
        call = case.setup(setting.device)
        timing = time_calls(call, setting.device)
    except Exception as error:  # whatever is wrong with one kernel, the others are still to be measured
        traceback.print_exc()
        setting.add(STEP, case.name, failed=True, note=_in_a_line(error))
        torch.cuda.synchronize(setting.device)  # raises if the device is lost: then this process is, too
        return
    finally:
        torch.cuda.empty_cache()
    floor_s = case.floor_s(known.bytes_per_s, known.flops_per_s)
    rates = []
    if case.num_bytes:
        rates.append(f"{case.num_bytes / timing.seconds / 1e9:.0f} GB/s")
    if case.num_flops:
        rates.append(f"{case.num_flops / timing.seconds / 1e12:.1f} TFLOP/s")
    note = ", ".join([*rates, f"floor {floor_s * 1e6:.1f} us", f"spread {timing.spread:.1%}"])
    if not timing.is_graph:
        note += ", launches included"
    share = floor_s / timing.seconds if floor_s else None
    setting.add(STEP, case.name, timing.seconds * 1e6, "us", share=share, target=case.target, note=note)


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
