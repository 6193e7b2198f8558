"""`slipstream bench` and AIPerf in turns on one server: do they measure the same?

    python scripts/bench_beside_aiperf.py --aiperf /path/to/venv/bin/aiperf --url http://127.0.0.1:8000
    python scripts/bench_beside_aiperf.py --aiperf ... --url ... --concurrency 8 --requests 200 --rounds 3

Both send prompts of one kind and length, ask for as many tokens and take the server's own counts. AIPerf needs an
environment of its own (`pip install aiperf`); the tokenizer is only there because it wants one. Rounds are interleaved,
and so is who is first. The table has the median over the rounds, and the lowest and highest of them. What the server
says of the same requests (its histograms of TTFT and latency at /metrics, with the requests of the warm-up) is told
below: one clock for both, so the rest is the client's own delay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from slipstream.cluster.bench.conversation import Lengths, Synthetic
from slipstream.cluster.bench.words import words_of
from slipstream.cluster.report.table import Cell, Table

ROOT = Path(__file__).resolve().parent.parent
STATISTICS = ("avg", "p50", "p90", "p99")
COMPARED = [
    *[("time_to_first_token", statistic) for statistic in STATISTICS],
    *[("inter_token_latency", statistic) for statistic in STATISTICS],
    *[("request_latency", statistic) for statistic in STATISTICS],
    ("output_sequence_length", "avg"),
    ("input_sequence_length", "avg"),
    ("output_token_throughput", "avg"),
    ("request_throughput", "avg"),
    ("benchmark_duration", "avg"),
]
SERVER = {
    "time_to_first_token": "vllm:time_to_first_token_seconds",
    "request_latency": "vllm:e2e_request_latency_seconds",
}
Figures = dict[tuple[str, str], float]


def figures(told: dict[str, dict[str, float]]) -> Figures:
    return {(name, statistic): told[name][statistic] for name, statistic in COMPARED if name in told}


def ours(args: argparse.Namespace, prompts: Path, folder: Path) -> Figures:
    outcome = folder / "ours.json"
    command = [sys.executable, "-m", "slipstream.cluster.cli", "bench", args.url, "--input", str(prompts)]
    command += ["--osl", str(args.osl), "--concurrency", str(args.concurrency), "--request-count", str(args.requests)]
    command += ["--warm-up", str(args.concurrency), "--tokenizer", str(args.tokenizer), "--json", str(outcome)]
    run(command, folder)
    return figures(json.loads(outcome.read_text())["levels"][0]["metrics"])


def theirs(args: argparse.Namespace, prompts: Path, folder: Path) -> Figures:
    command = [str(args.aiperf), "profile", "--model", args.model, "--url", args.url, "--endpoint-type", "chat"]
    command += ["--streaming", "--tokenizer", str(args.tokenizer), "--input-file", str(prompts)]
    command += ["--custom-dataset-type", "single_turn", "--osl", str(args.osl), "--use-server-token-count"]
    command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{args.osl}"]
    command += ["--concurrency", str(args.concurrency), "--request-count", str(args.requests)]
    command += ["--warmup-request-count", str(args.concurrency), "--ui", "none", "--no-gpu-telemetry"]
    command += ["--workers-max", "1", "--record-processors", "1"]  # more of them only take the server's cores here
    run([*command, "--artifact-dir", str(folder / "aiperf")], folder)
    return figures(json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text()))


def server_sums(url: str) -> dict[str, tuple[float, float]]:
    """Seconds and requests so far, of each histogram; empty for a server that does not tell."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    except OSError:
        return {}
    sums = {}
    for metric, name in SERVER.items():
        values = [
            sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"{name}_{part}"))
            for part in ("sum", "count")
        ]
        sums[metric] = (values[0], values[1])
    return sums


def of_server(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> Figures:
    return {
        (f"{metric} by the server", "avg"): 1e3 * (after[metric][0] - seconds) / (after[metric][1] - count)
        for metric, (seconds, count) in before.items()
        if after[metric][1] > count
    }


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")


def table(rounds: dict[str, list[Figures]]) -> Table:
    rows: list[list[Cell]] = []
    told = [key for key in rounds["slipstream"][0] if key not in COMPARED]
    for key in COMPARED + told:
        cells: list[Cell] = []
        medians = []
        for name in ("slipstream", "aiperf"):
            values = [one[key] for one in rounds[name]]
            medians.append(statistics.median(values))
            cells += [medians[-1], min(values), max(values)]
        rows.append([" ".join(key), *cells, f"{medians[0] / medians[1] - 1:+.1%}" if medians[1] else "-"])
    columns = ("metric", "slipstream", "low", "high", "aiperf", "low", "high", "difference")
    return Table("Both on one server (times in ms)", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="slipstream-demo")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "models" / "slipstream-demo")
    parser.add_argument("--isl", type=int, default=100)
    parser.add_argument("--osl", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.tokenizer = args.tokenizer.resolve()
    rounds: dict[str, list[Figures]] = {"slipstream": [], "aiperf": []}
    tools: list[tuple[str, Callable[[argparse.Namespace, Path, Path], Figures]]] = [
        ("slipstream", ours),
        ("aiperf", theirs),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(args.rounds):
            prompts = folder / f"prompts{number}.jsonl"
            for turn, (tool, measure) in enumerate(tools if number % 2 == 0 else tools[::-1]):
                # Prompts of a round differ between the tools, or the second would find them in the prefix cache.
                source = Synthetic(Lengths(args.isl), Lengths(args.osl))
                made = source.conversations(words_of(args.tokenizer), 2 * number + turn)
                texts = [one.turns[0].text for one in itertools.islice(made, args.requests + args.concurrency)]
                prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
                before = server_sums(args.url)
                found = measure(args, prompts, folder)
                rounds[tool].append(found | of_server(before, server_sums(args.url)))
    print(table(rounds).text(), end="")


if __name__ == "__main__":
    main()
