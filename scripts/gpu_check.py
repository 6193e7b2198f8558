"""Checks kernels, engine and page transfer on a GPU, and measures them against what the machine can do.

    scripts/gpu_check                       all steps, under nine minutes
    scripts/gpu_check --only engine         one step; several, if given several times
    scripts/gpu_check --dry-run             tiny shapes on the CPU: does it run?

Needs a GPU with torch, triton and transformers; nothing has to be installed and nothing is downloaded. Each step runs
in a process of its own, so that a fault on the device ends that step alone. Results are appended to OUT/results.jsonl
as they come, and a page named for the device (OUT/h200.md) is written anew after each step; a short table comes last.
The exit status is 0 if nothing failed and nothing was left out for lack of time.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from gpu_checks.record import Book, Row, as_markdown
from gpu_checks.setting import Setting


@dataclass(frozen=True, slots=True)
class Step:
    """`most_s`: the seconds that it may take; `reserved_s`: what the steps before it leave it in any case."""

    module: str
    title: str
    most_s: float
    reserved_s: float


# In order of importance: a run may be cut off.
STEPS = {
    "tests": Step("gpu_tests", "Tests on the device", 180, 60),
    "compiling": Step("ahead", "Compiling", 90, 30),
    "ceilings": Step("ceilings", "Ceilings", 40, 20),
    "kernels": Step("kernels", "Kernels", 150, 60),
    "engine": Step("engine", "Engine", 170, 90),
    "transfer": Step("page_transfer", "Pages between two processes on one GPU", 80, 40),
    "nccl": Step("nccl_transfer", "Pages between two GPUs over NCCL", 110, 10),
    "peer": Step("peer", "transformers on the same work", 120, 50),
}
BUDGET_S = 500.0  # of nine minutes, with what it takes to import torch for the first time, and to end
MIN_STEP_S = 10.0
MAX_RESTARTS = 8  # of the kernels, each after a fault on the device
SILENCE_S = 40.0  # a case of the kernels takes a few seconds, with compiling it: longer without a result, it hangs
PACKAGES = ("torch", "triton", "transformers", "numpy", "ucxx-cu13", "ucxx-cu12")


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that steps are ended, too
    out = Path(arguments.out)
    if arguments.step is not None:
        return _run_step(arguments.step, arguments)
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    book = Book(out / "results.jsonl")
    book.path.unlink(missing_ok=True)
    facts = _facts(arguments.dry_run)
    page = out / f"{_page_name(arguments.dry_run)}.md"
    steps = arguments.only or list(STEPS)
    for place, step in enumerate(steps):
        left_s = BUDGET_S - (time.monotonic() - begun) - sum(STEPS[later].reserved_s for later in steps[place + 1 :])
        if left_s < MIN_STEP_S:
            book.add(Row(step, "not begun", note="the time was over", failed=True))
        else:
            _supervise(step, min(STEPS[step].most_s, left_s), book)
        titles = {name: step.title for name, step in STEPS.items()}
        page.write_text(as_markdown(book.rows(), facts, titles), encoding="utf-8")
    return _summary(book, time.monotonic() - begun)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STEPS, action="append", metavar="STEP", help=f"one of {', '.join(STEPS)}")
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
    module: Any = importlib.import_module(f"gpu_checks.{STEPS[step].module}")
    module.run(Setting(book, device, arguments.dry_run, arguments.tune, arguments.wheels))
    return 0


def _supervise(step: str, limit_s: float, book: Book) -> None:
    """Runs a step in a process. The kernels' benchmarks are begun again behind the case that they died or hung of."""
    deadline = time.monotonic() + limit_s
    was_barren = False  # the process before had no result
    for _ in range(MAX_RESTARTS):
        num_rows = len(book.rows(step))
        reason = _reason_of_end(step, deadline, book)
        if reason is None:
            return
        book.mend()
        if time.monotonic() >= deadline:
            book.add(Row(step, "cut off", note=f"after {limit_s:.0f} s", failed=True))
            return
        rows = book.rows(step)
        is_barren = len(rows) == num_rows
        if step != "kernels" or (is_barren and was_barren):
            book.add(Row(step, "ended early", note=reason, failed=True))
            return
        if is_barren or not rows[-1].failed:  # else the case has reported its failure itself
            book.add(Row(step, f"case {len(rows) + 1}", note=reason, failed=True))
        was_barren = is_barren


def _reason_of_end(step: str, deadline: float, book: Book) -> str | None:
    """Why a step's process came to an end, None if all was done."""
    with _process([sys.executable, __file__, *sys.argv[1:], "--step", step]) as process:
        while (left_s := deadline - time.monotonic()) > 0:
            num_rows = len(book.rows(step))
            try:
                status = process.wait(min(left_s, SILENCE_S) if step == "kernels" else left_s)
            except subprocess.TimeoutExpired:
                if step == "kernels" and len(book.rows(step)) == num_rows:
                    return f"no result for {SILENCE_S:.0f} s"
            else:
                return f"exit status {status}" if status else None
    return "the time was over"


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the context, and with it what it has begun: what goes on would be measured along."""
    process = subprocess.Popen(command, process_group=0)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _facts(is_dry: bool) -> dict[str, str]:
    device = "CPU, tiny shapes: the figures mean nothing"
    if not is_dry and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        device = f"{properties.name}, {properties.multi_processor_count} multiprocessors, {memory}, driver {_driver()}"
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "device": f"{device}; torch for CUDA {torch.version.cuda}",
        "host": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        "command": f"`{shlex.join(['scripts/gpu_check', *sys.argv[1:]])}`",
        "share": "what was reached of the floor or ceiling that was measured in the same run",
    }


def _page_name(is_dry: bool) -> str:
    """h100, h200; whatever the device is called."""
    if is_dry or not torch.cuda.is_available():
        return "dry_run"
    name = torch.cuda.get_device_properties(0).name
    model = re.search(r"[A-Z]+\d+\w*", name)
    return (model[0] if model else re.sub(r"\W+", "_", name)).lower()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


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
