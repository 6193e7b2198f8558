"""Serves a tiny random model of every causal architecture that transformers has, and says which are right.

    scripts/architectures                          all of them, and writes docs/architectures.md
    scripts/architectures --only gemma2 mixtral    some; the others' rows stay as they are
    scripts/architectures --variants ragged tp2    some of the ways in which a model is served

Each architecture has a process of its own, with a bound on its time and memory, so that a crash is one row. The exit
status is 1 if an architecture that the document calls equal is no longer so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from .check_one import check
from .document import write_page
from .row import Result, Row, Rows, read_rows, write_rows
from .tiny_models.tiny_config import model_types
from .variants import VARIANTS

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("rows.jsonl")  # of the last run, from which the document is made
DOCUMENT = ROOT / "docs" / "architectures.md"
MEMORY_GIB = 12  # of address space, of which a process that has imported torch takes five
GRACE_S = 1.0


@dataclass(slots=True)
class Job:
    model_type: str
    process: Any
    pipe: Any
    deadline_s: float


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/architectures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="default: all")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--timeout-s", type=float, default=240.0, help="for one architecture")
    parser.add_argument("--model-impl", choices=["auto", "native", "transformers"], default="auto")
    parser.add_argument("--out", type=Path, help="write rows to this file alone, and not to the document")
    parser.add_argument("--write-only", action="store_true", help="write the document from the rows there are")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - set(model_types())
    if unknown:
        parser.error(f"--only: transformers has no causal model type {', '.join(sorted(unknown))}")
    known = read_rows(ROWS)
    rows: Rows = {}
    for row in () if options.write_only else run_all(options.only or list(model_types()), options):
        rows[row.model_type] = row
        print(in_a_line(row), flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(row.as_json() + "\n")
    if options.out is None:
        merged = known | {name: merge(known.get(name), row) for name, row in rows.items()}
        merged = {name: row for name, row in merged.items() if name in model_types()}
        write_rows(ROWS, merged)
        write_page(DOCUMENT, merged)
    return int(report_losses(known, rows, options.variants))


def merge(before: Row | None, row: Row) -> Row:
    """Variants that were not asked for this time stay as they were."""
    if before is not None and row.variants and row.path == before.path:
        merged = before.variants | row.variants
        row.variants = {name: merged[name] for name in VARIANTS if name in merged}
    return row


def report_losses(known: Rows, rows: Rows, variants: list[str]) -> bool:
    """Names what was equal and is no longer; returns whether there is any."""
    has_lost = False
    for name, row in rows.items():
        lost = [one for one in row.lost(known[name]) if one in variants] if name in known else []
        if lost:
            has_lost = True
            print(f"{name} is no longer equal: {', '.join(lost)}", file=sys.stderr)
    return has_lost


def run_all(wanted: list[str], options: argparse.Namespace) -> Iterator[Row]:
    """Rows in the order in which they are done."""
    waiting = list(reversed(wanted))
    jobs: dict[Any, Job] = {}
    while waiting or jobs:
        while waiting and len(jobs) < options.jobs:
            job = start(waiting.pop(), options)
            jobs[job.pipe] = job
        ready = wait(list(jobs), timeout=1.0)
        for pipe, job in list(jobs.items()):
            if pipe in ready or time.monotonic() > job.deadline_s:
                del jobs[pipe]
                yield end(job, pipe in ready, options)


def start(model_type: str, options: argparse.Namespace) -> Job:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, model_type, options.variants, options.model_impl)
    process = context.Process(target=child, args=arguments)
    process.start()
    theirs.close()
    return Job(model_type, process, ours, time.monotonic() + options.timeout_s)


def child(pipe: Any, model_type: str, variants: list[str], model_impl: str) -> None:
    os.setsid()  # so that its ranks can be ended with it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_GIB * 2**30, MEMORY_GIB * 2**30))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    pipe.send(check(model_type, variants, model_impl))
    pipe.close()


def end(job: Job, has_answer: bool, options: argparse.Namespace) -> Row:
    row: Row | None = None
    if has_answer:
        with suppress(EOFError):
            row = job.pipe.recv()
    if row is None:
        job.process.join(GRACE_S)
        status = job.process.exitcode
        why = f"no end after {options.timeout_s:g} s" if status is None else f"the process ended with status {status}"
        row = Row(job.model_type, model_types()[job.model_type], variants={"ragged": Result("failed", why)})
    with suppress(ProcessLookupError):
        os.killpg(job.process.pid, signal.SIGKILL)
    job.process.join()
    job.pipe.close()
    return row


def in_a_line(row: Row) -> str:
    head = f"{row.model_type:26} {row.path or '-':7} {row.seconds:6.1f} s  "
    if row.not_built:
        return head + f"not built: {row.not_built}"
    weak = "" if row.is_strong else "(weak test) "
    if row.refused:
        return head + weak + f"refused: {row.refused}"
    bad = {name: result for name, result in row.variants.items() if result.outcome != "equal"}
    return head + weak + ("equal" if not bad else "; ".join(f"{n} {r.outcome}: {r.why}" for n, r in bad.items()))


if __name__ == "__main__":
    sys.exit(main())
