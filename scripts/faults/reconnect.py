"""Kills the router of a cluster that serves tensor models, again and again, and measures when clients are served again.

    scripts/setup --dev
    .venv/bin/python scripts/faults/reconnect.py --kills 10 --every 10

A row for each kill, in seconds after it: when the next router listens for gRPC; the next answer to a
`tritonclient.grpc`, to one that tries to connect every 0.1 s, and over a kept HTTP connection.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.e2e.serving_cluster import ROOT, ServingCluster
from tests.support.tensor_faults.tensor_faults import addresses

COLUMNS = ("listens", "gRPC", "gRPC, eager", "HTTP")
PAUSE_S = 0.01
FIRST_KILL_S = 8.0  # after the start
HTTP_TIMEOUT_S = 60.0
TCP_LISTEN = "0A"  # in /proc/net/tcp
BODY = (
    b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}, '
    b'{"name": "INPUT1", "datatype": "FP32", "shape": [1], "data": [2]}]}'
)
EAGER = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")]


class Prober:
    """Asks all the time, in a thread, and notes when it is answered for the first time after `begin`."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._is_waiting = False
        self.answered_s: float | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self) -> None:
        self.answered_s = None
        self._is_waiting = True

    def _run(self) -> None:
        while True:
            is_answered = self._ask()
            if is_answered and self._is_waiting:
                self.answered_s = time.monotonic()
                self._is_waiting = False
            time.sleep(PAUSE_S)


def grpc_prober(address: str, options: list[tuple[str, int]] | None = None) -> Prober:
    client = triton.InferenceServerClient(address, channel_args=options)
    inputs = [triton.InferInput(f"INPUT{number}", [1], "FP32") for number in range(2)]
    for one in inputs:
        one.set_data_from_numpy(np.ones(1, np.float32))

    def ask() -> bool:
        try:
            client.infer("add_sub", inputs)
        except InferenceServerException:
            return False
        return True

    return Prober(ask)


def http_prober(host: str, port: int) -> Prober:
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)

    def ask() -> bool:
        try:
            connection.request("POST", "/v2/models/add_sub/infer", BODY)
            with connection.getresponse() as response:
                response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return False
        return response.status == 200

    return Prober(ask)


def listens(port: int) -> bool:
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return any(local.endswith(f":{port:04X}") and state == TCP_LISTEN for _, local, _, state, *_ in lines)


def kill(serving: ServingCluster, probers: dict[str, Prober], port: int) -> dict[str, float]:
    """Kills the router, and returns what came when, in seconds after that."""
    pids = serving.pids("router")
    killed_s = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    serving.wait_for(lambda: not listens(port), HTTP_TIMEOUT_S)
    for prober in probers.values():
        prober.begin()
    found: dict[str, float] = {}
    while len(found) < len(COLUMNS):
        if "listens" not in found and listens(port):
            found["listens"] = time.monotonic() - killed_s
        for name, prober in probers.items():
            if prober.answered_s is not None:
                found[name] = prober.answered_s - killed_s
        time.sleep(PAUSE_S)
    serving.wait_until_restarted("router", pids)
    return found


def measure(folder: Path, num_kills: int, every_s: float) -> list[dict[str, float]]:
    settings: dict[str, Any] = {
        "paths": [str(ROOT / "configs" / "repository")],
        "grpc": {"port": 0},
        "metrics": {"port": 0},
    }
    rows = []
    with ServingCluster(folder, {"name": "reconnect", "repository": settings}) as serving:
        (host, http_port), grpc = addresses(serving)
        asking = (grpc_prober(grpc), grpc_prober(grpc, EAGER), http_prober(host, http_port))
        probers = dict(zip(COLUMNS[1:], asking, strict=True))
        time.sleep(FIRST_KILL_S)
        for _ in range(num_kills):
            began_s = time.monotonic()
            rows.append(kill(serving, probers, int(grpc.rpartition(":")[2])))
            print(line(rows[-1]), flush=True)
            time.sleep(max(0.0, began_s + every_s - time.monotonic()))
    return rows


def line(row: dict[str, float]) -> str:
    return "".join(f"{row[name]:13.2f}" for name in COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=float, default=10.0, help="seconds")
    options = parser.parse_args()
    print("".join(f"{name:>13}" for name in COLUMNS), flush=True)
    with tempfile.TemporaryDirectory(prefix="slipstream-reconnect-") as folder:
        rows = measure(Path(folder), options.kills, options.every)
    for name, of in (("median", statistics.median), ("slowest", max)):
        print(line({column: of([row[column] for row in rows]) for column in COLUMNS}), name)


if __name__ == "__main__":
    main()
