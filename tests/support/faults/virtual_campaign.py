"""Many worlds, one a seed, on several cores."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.faults.virtual_world import World

SEEDS_A_TASK = 25


@dataclass
class Report:
    """`failures`: seed and what went wrong. `seen`: what happened, how often."""

    num_seeds: int = 0
    cpu_s: float = 0.0
    num_events: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        self.num_seeds += other.num_seeds
        self.cpu_s += other.cpu_s
        self.num_events += other.num_events
        self.failures += other.failures
        self.seen += other.seen


def run_seed(seed: int) -> World:
    """Raises whatever is found to be wrong, with the moment in it."""
    world = World(seed)
    try:
        world.run()
        world.check()
    except Exception as error:
        error.add_note(f"seed {seed} at {world.clock.now:.4f} s of virtual time")
        raise
    return world


def run_some(seeds: Sequence[int]) -> Report:
    report = Report()
    began_s = time.process_time()
    gc.disable()  # worlds are short, and full of cycles that it would look through again and again
    for seed in seeds:
        try:
            world = run_seed(seed)
        except Exception:
            report.failures.append((seed, traceback.format_exc()))
        else:
            totals = world.router.dispatcher.snapshot(world.clock.now).totals if world.router is not None else None
            report.seen += world.seen
            if totals is not None:
                report.seen += Counter({f"placed: {reason}": n for reason, n in totals.placements.items()})
                report.seen += Counter({f"retried: {cause}": n for cause, n in totals.retries.items()})
                report.seen += Counter({f"migration: {result}": n for result, n in totals.migrations.items()})
                report.seen += Counter({"rebalanced": totals.num_rebalanced})
            report.num_events += world.clock.num_events
        report.num_seeds += 1
    gc.enable()
    gc.collect()
    report.cpu_s = time.process_time() - began_s
    return report


def run_campaign(
    seeds: Sequence[int], num_processes: int, progress: Callable[[Report], None] = lambda report: None
) -> Report:
    """All seeds; the first failures come first. `progress` sees the report grow."""
    tasks = [seeds[at : at + SEEDS_A_TASK] for at in range(0, len(seeds), SEEDS_A_TASK)]
    report = Report()
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        for part in pool.imap(run_some, tasks):
            report.add(part)
            progress(report)
    return report
