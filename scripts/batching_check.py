"""Runs the schedulers of tensor models beside plain models of their specification, for many seeds in virtual time.

.venv/bin/python scripts/batching_check.py                  # 10,000 seeds of each kind, on all cores
.venv/bin/python scripts/batching_check.py --seeds 100 --first 4711
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import click

from tests.support.router.batching.virtual_world import DynamicWorld, MismatchError, SequenceWorld, VirtualWorld

WORLDS: tuple[type[VirtualWorld], ...] = (DynamicWorld, SequenceWorld)
SEEDS_A_TASK = 100


def mismatches(first: int, num_seeds: int) -> list[str]:
    """What differed with these seeds."""
    found = []
    for world in WORLDS:
        for seed in range(first, first + num_seeds):
            try:
                world(seed).run()
            except MismatchError as error:
                found.append(f"{world.__name__}: {error}")
    return found


@click.command()
@click.option("--seeds", default=10_000, show_default=True, help="How many of each kind.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
def main(seeds: int, first: int) -> None:
    began_s = time.monotonic()
    starts = range(first, first + seeds, SEEDS_A_TASK)
    sizes = [min(SEEDS_A_TASK, first + seeds - start) for start in starts]
    with ProcessPoolExecutor() as pool:
        found = [text for texts in pool.map(mismatches, starts, sizes) for text in texts]
    for text in found:
        print(text)
    num_s = time.monotonic() - began_s
    print(f"{seeds:,} seeds of {len(WORLDS)} kinds, {len(found)} mismatches, {num_s:.0f} s")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
