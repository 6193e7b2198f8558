"""A line at the terminal that shows the progress of a level; nothing if there is no terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.load.load_level import Extent

INTERVAL_S = 0.25
BAR_WIDTH = 24


def progress_line(run: LevelRun, extent: Extent, elapsed_s: float) -> str:
    """`concurrency 8  ━━━━━━────  42%  84/200 requests, 8 running, 12.3/s, 1 failed`."""
    num_done = len(run.answers)
    of_requests = num_done / extent.num_requests if extent.num_requests else 0.0
    of_time = elapsed_s / extent.duration_s if extent.duration_s else 0.0
    share = min(max(of_requests, of_time), 1.0)
    full = round(share * BAR_WIDTH)
    total = f"/{extent.num_requests}" if extent.num_requests else ""
    rate = num_done / elapsed_s if elapsed_s > 0 else 0.0
    errors = f", {run.num_errors} failed" if run.num_errors else ""
    bar = "━" * full + "─" * (BAR_WIDTH - full)
    counts = f"{num_done}{total} requests, {run.num_running} running, {rate:.1f}/s{errors}"
    return f"{run.level.name}  {bar} {share:4.0%}  {counts}"


@contextmanager
def shown_progress(run: LevelRun, extent: Extent, stream: TextIO) -> Iterator[None]:
    """Redraws the line while the context is open, on the running event loop."""
    if not stream.isatty():
        yield
        return
    loop, begun_s = asyncio.get_running_loop(), time.perf_counter()
    timer: asyncio.TimerHandle | None = None

    def draw() -> None:
        nonlocal timer
        stream.write(f"\r\x1b[K{progress_line(run, extent, time.perf_counter() - begun_s)}"[:140])
        stream.flush()
        timer = loop.call_later(INTERVAL_S, draw)

    draw()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        stream.write("\r\x1b[K")
        stream.flush()
