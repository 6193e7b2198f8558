"""Where the router's time goes for a small tensor request: microseconds of CPU by stage, from samples of its stacks.

    python3 -m venv ../tools && ../tools/bin/pip install py-spy
    .venv/bin/python scripts/bench/kserve/stage_times.py --perf-analyzer perf_analyzer --py-spy ../tools/bin/py-spy

A stage is named by the innermost function in a stack that belongs to one; system calls count for the stage that makes
them. Only the thread of the event loop is sampled, and the CPU time of all threads is measured beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
from bench_repository import write_repository
from tensor_servers import TensorServer, slipstream

LOOP = "uvloop"
STAGES = [  # the first whose text is in the stack; innermost stages first
    ("statistics and records", ("statistics_recorder", "request_record")),
    ("frame to the instance", ("InstanceLink.execute", "instance_messages.py", "FrameConnection.send")),
    ("batching", ("router/batching", "batching/")),
    (
        "answer made and given to the socket",
        ("InferCalls._answer", "infer_answer", "InferCalls._send", "UnaryCall.respond"),
    ),
    ("body and tensors read", ("InferCalls._read", "infer_body", "infer_request_message")),
    ("request checked", ("request_check",)),
    ("dispatch", ("infer/requests", "tensor_service", "version_runtime", "model_versions")),
    ("frame from the instance", ("frame_reader", "frame_connection", "instance_receiver")),
    ("HTTP read and parsed", ("http/reader", "http/connection", "HttpConnection")),
    ("routing, keys, counts", ("api_front", "kserve_api", "infer_calls", "response_waiter", "kserve/grpc")),
]
OTHERS = "event loop, sockets, gRPC's library"
SECONDS = 6


def stage_of(stack: str) -> str:
    return next((name for name, words in STAGES if any(word in stack for word in words)), OTHERS)


def router_of(server: TensorServer) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(child for child in children if "ServingRouter" in " ".join(child.cmdline()))


def cpu_us(server: TensorServer, router: psutil.Process, model: str) -> float:
    """Of the router, for one inference, over a few seconds."""
    server.inferences_since_last(model)
    before = router.cpu_times()
    time.sleep(SECONDS)
    after = router.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return used_s / server.inferences_since_last(model) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf-analyzer", required=True, help="the program")
    parser.add_argument("--py-spy", required=True, help="the program")
    parser.add_argument("--model", default="add_sub")
    parser.add_argument("--protocol", default="http", choices=("http", "grpc"))
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        write_repository(folder / "repository")
        server = running.enter_context(slipstream(folder / "repository"))
        at = server.http if args.protocol == "http" else server.grpc
        command = [args.perf_analyzer, "-m", args.model, "-u", at, "-i", args.protocol, "-b", "1", "-s", "999"]
        command += ["--concurrency-range", str(args.clients), "-p", "10000", "-r", "3"]
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running.callback(client.wait)
        running.callback(client.kill)
        time.sleep(2)  # until the clients are at full speed
        router = router_of(server)
        total_us = cpu_us(server, router, args.model)
        samples = folder / "samples.txt"
        sampler = [args.py_spy, "record", "-p", str(router.pid), "-d", str(SECONDS), "-r", "200", "-f", "raw", "-g"]
        subprocess.run([*sampler, "-o", str(samples)], check=True, capture_output=True)
        show(samples.read_text(), total_us)


def show(samples: str, total_us: float) -> None:
    stages: Counter[str] = Counter()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        if LOOP in stack:
            stages[stage_of(stack)] += int(count)
    num_samples = max(sum(stages.values()), 1)
    print("| stage | share % | us |\n|---|--:|--:|")
    for name in (*(name for name, _ in STAGES), OTHERS):
        share = stages[name] / num_samples
        print(f"| {name} | {share * 100:.0f} | {share * total_us:.1f} |")
    print(f"| all threads of the router | 100 | {total_us:.1f} |")


if __name__ == "__main__":
    main()
