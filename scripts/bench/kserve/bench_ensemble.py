"""An ensemble of three steps against three calls by its client, here and by the real Triton Inference Server.

    python3.11 -m venv ../triton && ../triton/bin/pip install nvidia-pytriton==0.7.0
    .venv/bin/python scripts/bench/kserve/bench_ensemble.py --triton ../triton

Both servers have the same models (`three_busy_steps` of `bench_repository.py`: each step takes 2 ms of a core and
batches). A client waits for its answer before it asks again; with three calls, the outputs of one are the inputs of the
next. Servers and ways take turns; figures are medians of the repeats.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_repository import ENSEMBLES, STEPS, write_repository
from tensor_servers import TensorServer, slipstream, triton

ROW = [1.0, 2.0, 3.0, 4.0]
WAYS = ("ensemble", "three calls")


@dataclass(slots=True)
class Figures:
    """Of one server and way: requests a second and milliseconds of each repeat."""

    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


class Client(threading.Thread):
    """Asks until `end_s`. `took_ms` has the time of each request, of all its calls together."""

    def __init__(self, server: TensorServer, models: Sequence[str], end_s: float) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(server.http)
        self._models = models
        self._end_s = end_s
        self.took_ms: list[float] = []

    def run(self) -> None:
        while True:
            begin_s = time.monotonic()
            if begin_s >= self._end_s:
                return
            a, b = ROW, ROW
            for model in self._models:
                a, b = self._call(model, a, b)
            self.took_ms.append((time.monotonic() - begin_s) * 1e3)

    def _call(self, model: str, a: list[float], b: list[float]) -> tuple[list[float], list[float]]:
        inputs: list[dict[str, Any]] = [
            {"name": name, "datatype": "FP32", "shape": [1, 4], "data": data} for name, data in (("A", a), ("B", b))
        ]
        self._connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}))
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{model}: {answer.status} {body.decode(errors='replace')}")
        outputs = {output["name"]: output["data"] for output in json.loads(body)["outputs"]}
        return outputs["SUM"], outputs["DIFF"]


def measure(server: TensorServer, models: Sequence[str], num_clients: int, window_s: float) -> list[float]:
    """Milliseconds of each request."""
    clients = [Client(server, models, time.monotonic() + window_s) for _ in range(num_clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return sorted(took_ms for client in clients for took_ms in client.took_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", type=Path, help="a virtual environment with nvidia-pytriton")
    parser.add_argument("--model", default="three_busy_steps", choices=ENSEMBLES)
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    calls = {WAYS[0]: [args.model], WAYS[1]: [f"{args.model}_{step}" for step in range(STEPS)]}
    found: dict[tuple[int, str, str], Figures] = {}
    with ExitStack() as running:
        repository = Path(running.enter_context(tempfile.TemporaryDirectory())) / "repository"
        write_repository(repository, [args.model])
        servers = [running.enter_context(slipstream(repository))]
        if args.triton is not None:
            servers.append(running.enter_context(triton(args.triton, repository)))
        for repeat in range(-1, args.repeats):  # the first one warms up
            for clients in map(int, args.clients.split(",")):
                for way, models in calls.items():
                    for server in servers:
                        took_ms = measure(server, models, clients, args.window_s)
                        if repeat >= 0:
                            figures = found.setdefault((clients, way, server.name), Figures())
                            figures.rates.append(len(took_ms) / args.window_s)
                            figures.p50_ms.append(statistics.median(took_ms))
                            figures.p99_ms.append(took_ms[int(len(took_ms) * 0.99)])
                            print(f"{clients} {way} {server.name}: {figures.rates[-1]:.1f}/s", file=sys.stderr)
    show(found, servers[-1].name)


def show(found: dict[tuple[int, str, str], Figures], peer: str) -> None:
    """Ratios of rates: to the other server in the same way, and to three calls at the same server."""
    print("| clients | way | server | requests/s | min to max | p50 ms | p99 ms | to triton | to three calls |")
    print("|--:|---|---|--:|--:|--:|--:|--:|--:|")
    median = statistics.median
    for (clients, way, server), figures in found.items():
        rate = median(figures.rates)
        to_peer = f"{rate / median(found[clients, way, peer].rates):.2f}" if server != peer else ""
        to_calls = f"{rate / median(found[clients, WAYS[1], server].rates):.2f}" if way == WAYS[0] else ""
        spread = f"{min(figures.rates):.1f} to {max(figures.rates):.1f}"
        times = f"{median(figures.p50_ms):.2f} | {median(figures.p99_ms):.2f}"
        print(f"| {clients} | {way} | {server} | {rate:.1f} | {spread} | {times} | {to_peer} | {to_calls} |")


if __name__ == "__main__":
    main()
