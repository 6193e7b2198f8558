"""Pages from a prefill process to a decode process on the same GPU, in two ways.

    agents    whole transfer agents, as workers have them, over UCX with cuda_ipc: gathered, sent, scattered
    pull      the other process's pool mapped here (CUDA IPC), pages copied straight from pool to pool

Rates are bytes of pages a second; as shares of the copy ceiling each byte counts twice, read and written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_checks.ceilings import Ceilings, ceilings
from gpu_checks.setting import Setting
from gpu_checks.transfer_process import REPORT, Job

STEP = "transfer"
TARGET = 0.5
PROCESS = Path(__file__).with_name("transfer_process.py")
FULL_JOB = Job(num_layers=32, num_pages=1024, num_heads=8, head_bytes=8192, num_moved=256, slab_pages=256, rounds=20)
DRY_JOB = Job(num_layers=2, num_pages=16, num_heads=2, head_bytes=1024, num_moved=8, slab_pages=4, rounds=2)
SECONDS = 35.0  # of one way, both processes


def run(setting: Setting) -> None:
    known = ceilings(setting)
    job = DRY_JOB if setting.is_dry else FULL_JOB
    devices = (setting.device.type,) * 2
    measure(setting, STEP, "pull", job, dict(os.environ), known, devices, TARGET)
    try:
        environment = _with_wheels(setting)
    except subprocess.CalledProcessError as error:
        setting.add(STEP, "agents", failed=True, note=f"the wheels could not be unpacked: {error}")
        return
    if not _has_ucxx(environment):
        setting.add(STEP, "agents", note="skipped: ucxx is not installed (--wheels DIR unpacks wheel files)")
        return
    measure(setting, STEP, "agents", job, environment, known, devices, TARGET)


def measure(
    setting: Setting,
    step: str,
    way: str,
    job: Job,
    environment: dict[str, str],
    known: Ceilings,
    devices: tuple[str, str],
    target: float | None,
) -> None:
    """Runs a way between a prefill and a decode process, on these devices, and adds a row. `target` is a share of the
    copy ceiling."""
    found = _two_processes(way, job, environment, devices)
    if isinstance(found, str):
        setting.add(step, way, failed=True, note=found)
        return
    rate = job.total_bytes / found["seconds"]
    share = 2 * rate / known.bytes_per_s
    note = f"{job.total_bytes / 1e6:.0f} MB a transfer, median of {job.rounds}; {found['note']}"
    setting.add(step, way, rate / 1e9, "GB/s", share=share, target=None if setting.is_dry else target, note=note)


def _with_wheels(setting: Setting) -> dict[str, str]:
    """With a folder of unpacked wheels on the path where there are any. Raises CalledProcessError."""
    environment = dict(os.environ)
    if setting.wheels is not None:
        site = setting.book.path.parent.resolve() / "site"
        wheels = [str(path) for path in sorted(setting.wheels.glob("*.whl"))]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        subprocess.run([*command, "--target", str(site), *wheels], check=True)
        environment["PYTHONPATH"] = f"{site}:{environment.get('PYTHONPATH', '')}"
    return environment


def _has_ucxx(environment: dict[str, str]) -> bool:
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ucxx') is None)"
    return subprocess.run([sys.executable, "-c", probe], env=environment).returncode == 0


def _two_processes(
    way: str, job: Job, environment: dict[str, str], devices: tuple[str, str]
) -> dict[str, float | str] | str:
    """What the decode process reports, or why there is nothing. The two speak over a pair of pipes."""
    to_decode, to_prefill = os.pipe(), os.pipe()
    base = [sys.executable, str(PROCESS), json.dumps(job.as_dict()), way]
    ends: Sequence[tuple[str, str, int, int]] = (
        (devices[0], "prefill", to_prefill[0], to_decode[1]),
        (devices[1], "decode", to_decode[0], to_prefill[1]),
    )
    processes = [
        subprocess.Popen(
            [*base, device, role, str(reads), str(writes)],
            env=environment,
            pass_fds=(reads, writes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for device, role, reads, writes in ends
    ]
    for fd in (*to_decode, *to_prefill):
        os.close(fd)  # ours; the processes have theirs, and one that dies ends the other's reading
    outputs = []
    deadline = time.monotonic() + SECONDS
    for process in reversed(processes):
        try:
            outputs.append(process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(process.communicate()[0] + f"no end within {SECONDS:.0f} s")
    results = [line for line in outputs[0].splitlines() if line.startswith(REPORT)]
    if any(process.returncode for process in processes) or not results:
        print("\n".join(outputs), flush=True)
        return " / ".join(output.strip().splitlines()[-1] if output.strip() else "" for output in outputs)[:300]
    # Native libraries may have warned of something after it.
    found: dict[str, float | str] = json.loads(results[-1].removeprefix(REPORT))
    return found
