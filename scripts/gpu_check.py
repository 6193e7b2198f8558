"""Checks kernels, engine and page transfer on a GPU, and measures them against what the machine can do.

    scripts/gpu_check                       all steps, at most nine minutes
    scripts/gpu_check --only engine         one step
    scripts/gpu_check --dry-run             tiny shapes on the CPU: does it run?

Needs a GPU with torch, triton and transformers; nothing has to be installed and nothing is downloaded. Each step runs
in a process of its own, so that a fault on the device ends that step alone. Results are appended to OUT/results.jsonl
as they come, and OUT/h200.md is written anew after each step; a short table comes last.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from gpu_checks.record import Book, Row, as_markdown
from gpu_checks.setting import Setting

# step: (module, title, most seconds). In order of importance: a run may be cut off.
STEPS = {
    "tests": ("gpu_tests", "Tests on the device", 200),
    "ceilings": ("ceilings", "Ceilings", 40),
    "kernels": ("kernels", "Kernels", 120),
    "engine": ("engine", "Engine", 150),
    "transfer": ("page_transfer", "Pages between two processes on one GPU", 60),
    "peer": ("peer", "transformers on the same work", 120),
}
BUDGET_S = 520.0
MIN_STEP_S = 10.0
MAX_RESTARTS = 8  # of the kernels, each after a fault on the device
PACKAGES = ("torch", "triton", "transformers", "numpy", "ucxx-cu13", "ucxx-cu12")


def main() -> int:
    arguments = _arguments()
    out = Path(arguments.out)
    if arguments.step is not None:
        return _run_step(arguments.step, arguments)
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    book = Book(out / "results.jsonl")
    book.path.unlink(missing_ok=True)
    facts = _facts(arguments.dry_run)
    for step in [arguments.only] if arguments.only else STEPS:
        limit_s = min(STEPS[step][2], BUDGET_S - (time.monotonic() - begun))
        if limit_s < MIN_STEP_S:
            book.add(Row(step, "not begun", note="the time was over"))
        else:
            _supervise(step, limit_s, book)
        titles = {name: title for name, (_, title, _) in STEPS.items()}
        (out / "h200.md").write_text(as_markdown(book.rows(), facts, titles), encoding="utf-8")
    return _summary(book, time.monotonic() - begun)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STEPS, metavar="STEP", help=f"one of {', '.join(STEPS)}")
    parser.add_argument("--out", default="gpu_check_results", help="folder for results (default: %(default)s)")
    parser.add_argument("--tune", action="store_true", help="kernels: other configurations, too")
    parser.add_argument("--wheels", type=Path, help="folder of wheel files to unpack for ucxx where it is missing")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_step(step: str, arguments: argparse.Namespace) -> int:
    """In the step's own process."""
    if not arguments.dry_run and not torch.cuda.is_available():
        print("torch sees no GPU here (--dry-run does without)", file=sys.stderr)
        return 2
    device = torch.device("cpu" if arguments.dry_run else "cuda")
    book = Book(Path(arguments.out) / "results.jsonl")
    module: Any = importlib.import_module(f"gpu_checks.{STEPS[step][0]}")
    module.run(Setting(book, device, arguments.dry_run, arguments.tune, arguments.wheels))
    return 0


def _supervise(step: str, limit_s: float, book: Book) -> None:
    """Runs a step in a process. One that dies of the kernels' benchmarks is begun again behind the case it died of."""
    deadline = time.monotonic() + limit_s
    for _ in range(MAX_RESTARTS):
        num_rows = len(book.rows(step))
        command = [sys.executable, __file__, *sys.argv[1:], "--step", step]
        process = subprocess.Popen(command)
        try:
            status = process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            book.mend()
            book.add(Row(step, "cut off", note=f"after {limit_s:.0f} s"))
            return
        if status == 0:
            return
        book.mend()
        if step != "kernels" or len(book.rows(step)) == num_rows:
            book.add(Row(step, "ended early", note=f"exit status {status}", failed=True))
            return


def _facts(is_dry: bool) -> dict[str, str]:
    device = "CPU, tiny shapes: the figures mean nothing"
    if not is_dry and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        device = f"{properties.name}, {properties.multi_processor_count} multiprocessors, {memory}"
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "device": f"{device}; driver CUDA {torch.version.cuda}",
        "host": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        "command": f"`{shlex.join(['scripts/gpu_check', *sys.argv[1:]])}`",
        "share": "what was reached of the floor or ceiling that was measured in the same run",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _summary(book: Book, seconds: float) -> int:
    rows = book.rows()
    print(f"\n---- {len(rows)} results in {seconds:.0f} s, in {book.path}")
    for row in rows:
        if row.share is not None or row.failed or row.step in ("ceilings", "tests", "peer"):
            print(row.line())
    failed, missed = sum(row.failed for row in rows), sum(row.misses_target for row in rows)
    print(f"---- {failed} failed, {missed} below their target")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
