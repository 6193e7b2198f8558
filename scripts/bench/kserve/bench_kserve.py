"""Tensor requests beside the real Triton Inference Server: the same repository, client and minutes, in turns.

    python3.11 -m venv ../triton && ../triton/bin/pip install nvidia-pytriton==0.7.0
    .venv/bin/python scripts/bench/kserve/bench_kserve.py --triton ../triton --perf-analyzer perf_analyzer
    .venv/bin/python scripts/bench/kserve/bench_kserve.py --perf-analyzer perf_analyzer --models add_sub   # ours alone

The server comes from the wheel of nvidia-pytriton (2.51 with the Python backend). The client is NVIDIA's perf_analyzer
(PyPI: perf-analyzer; it needs glibc 2.38). Each cell is a closed loop of so many clients; figures are medians of the
repeats. CPU is that of the server and its processes, for one inference.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench_repository import MODELS, write_repository
from tensor_servers import TensorServer, slipstream, triton

SHAPES = {"large": ["--shape", "IN:1048576"]}


@dataclass(slots=True)
class Cell:
    """The repeats of one server, model, protocol and number of clients."""

    rates: list[float] = field(default_factory=list)  # inferences a second
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # of the server, an inference


def measure(server: TensorServer, model: str, protocol: str, clients: int, args: argparse.Namespace) -> Cell:
    """One run of the client. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        at = server.http if protocol == "http" else server.grpc
        command = [args.perf_analyzer, "-m", model, "-u", at, "-i", protocol, "-b", "1", "-f", str(report)]
        command += ["--concurrency-range", str(clients), "-p", str(args.window_ms), "-r", "3", "-s", "999"]
        command += SHAPES.get(model, [])
        before = server.cpu_s()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{server.name}, {model}, {protocol}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        used_s = server.cpu_s() - before
        (row,) = csv.DictReader(report.read_text().splitlines())
    rate = float(row["Inferences/Second"])
    # The client reports the last three windows; what it did before them is CPU time as well.
    num_inferences = server.inferences_since_last(model)
    return Cell([rate], [float(row["p50 latency"])], [float(row["p99 latency"])], [used_s / num_inferences * 1e6])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", type=Path, help="a virtual environment with nvidia-pytriton")
    parser.add_argument("--perf-analyzer", required=True, help="the program")
    parser.add_argument("--models", default=",".join(name for name in MODELS if name != "large"))
    parser.add_argument("--protocols", default="http,grpc")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--window-ms", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    cells: dict[tuple[str, str, int, str], Cell] = {}
    with ExitStack() as running:
        repository = Path(running.enter_context(tempfile.TemporaryDirectory())) / "repository"
        write_repository(repository)
        servers = [running.enter_context(slipstream(repository))]
        if args.triton is not None:
            servers.append(running.enter_context(triton(args.triton, repository)))
        for _ in range(args.repeats):
            for model in args.models.split(","):
                for protocol in args.protocols.split(","):
                    for clients in map(int, args.clients.split(",")):
                        for server in servers:
                            one = measure(server, model, protocol, clients, args)
                            cell = cells.setdefault((model, protocol, clients, server.name), Cell())
                            cell.rates += one.rates
                            cell.p50_us += one.p50_us
                            cell.p99_us += one.p99_us
                            cell.cpu_us += one.cpu_us
                            print(f"{model} {protocol} {clients} {server.name}: {one.rates[0]:.0f}/s", file=sys.stderr)
    show(cells, [server.name for server in servers])


def show(cells: dict[tuple[str, str, int, str], Cell], servers: list[str]) -> None:
    print("| model | protocol | clients | server | inferences/s | min to max | p50 us | p99 us | CPU us | ratio |")
    print("|---|---|--:|---|--:|--:|--:|--:|--:|--:|")
    median = statistics.median
    for (model, protocol, clients, server), cell in cells.items():
        peer = cells.get((model, protocol, clients, servers[-1]))
        ratio = f"{median(cell.rates) / median(peer.rates):.2f}" if peer is not None and server != servers[-1] else ""
        spread = f"{min(cell.rates):.0f} to {max(cell.rates):.0f}"
        figures = f"{median(cell.rates):.0f} | {spread} | {median(cell.p50_us):.0f} | {median(cell.p99_us):.0f}"
        print(f"| {model} | {protocol} | {clients} | {server} | {figures} | {median(cell.cpu_us):.0f} | {ratio} |")


if __name__ == "__main__":
    main()
