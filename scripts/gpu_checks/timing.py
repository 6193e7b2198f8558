"""How long work takes on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

WARM_CALLS = 3
GRAPH_S = 0.02  # work of one graph: long against the gap before it
MAX_GRAPH_CALLS = 64  # as many as there may be sets of inputs to take turns
MIN_ROUNDS, MAX_ROUNDS = 5, 21


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians. `spread` is half of the distance between the quartiles, as a share of the median."""

    seconds: float
    spread: float
    is_graph: bool


def time_calls(call: Callable[[], object], device: torch.device, budget_s: float = 0.3) -> Timing:
    """Seconds of one `call`, which only queues work.

    On a GPU calls are recorded as a graph, so that gaps between launches do not count, and its replays are timed with
    events; where a call cannot be recorded, calls one after the other are.
    """
    for _ in range(WARM_CALLS):
        call()
    if device.type != "cuda":
        return _summary([_host_seconds(call) for _ in range(MIN_ROUNDS)], 1, False)
    torch.cuda.synchronize(device)
    estimate_s = _device_seconds(call)
    num_calls = max(1, min(MAX_GRAPH_CALLS, int(GRAPH_S / max(estimate_s, 1e-7))))
    replay = _recorded(call, num_calls)
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_s / (num_calls * max(estimate_s, 1e-7)))))

    def loop() -> None:
        for _ in range(num_calls):
            call()

    work = replay or loop
    work()
    return _summary([_device_seconds(work) for _ in range(rounds)], num_calls, replay is not None)


def time_on_host(work: Callable[[], object], rounds: int) -> Timing:
    """Seconds from the call to its return; `work` waits for the device itself. One call more goes first."""
    work()
    return _summary([_host_seconds(work) for _ in range(rounds)], 1, False)


def _recorded(call: Callable[[], object], num_calls: int) -> Callable[[], object] | None:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(num_calls):
                call()
    except RuntimeError:
        torch.cuda.synchronize()  # raises if the device is broken and not only the recording
        return None
    return graph.replay


def _device_seconds(work: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _host_seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _summary(seconds: list[float], num_calls: int, is_graph: bool) -> Timing:
    middle = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4)
    return Timing(middle / num_calls, (high - low) / 2 / middle, is_graph)
