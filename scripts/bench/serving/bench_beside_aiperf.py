"""`slipstream bench` and AIPerf in turns on one server: do they measure the same?

    python scripts/bench/serving/bench_beside_aiperf.py --aiperf /path/to/venv/bin/aiperf --url http://127.0.0.1:8000
    python scripts/bench/serving/bench_beside_aiperf.py --aiperf ... --url ... --concurrency 1,2,4,8 --request-rate 5
    --rounds 3

Both send prompts of one kind and length, ask for as many tokens and take the server's own counts. AIPerf needs an
environment of its own (`pip install aiperf`); the tokenizer is only there because it wants one. Rounds are interleaved,
and so is who is first. `--kept FILE` adds each round to those that the file has already, so that rounds can be taken
whenever the machine is quiet; `--rounds 0` shows only what is there.

The referee is the server: its histograms of the same requests (/metrics, with those of the warm-up) are one clock for
both, and `after the server` is what each client reads more than that. The last column judges the two medians:

    agree    they differ by no more than the rounds of one tool among themselves (highest - lowest of the wider one)
    server   they differ by more, but what they read more than the server does not: the server was slower for one
    client   none of both
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.tools.bench.client.conversation import Lengths, Synthetic
from slipstream.cluster.tools.bench.client.prompt_text import prompt_words
from slipstream.cluster.tools.report.table import Cell, Table

ROOT = Path(__file__).resolve().parents[3]
STATISTICS = ("avg", "p50", "p90", "p99")
TIMES = ("time_to_first_token", "inter_token_latency", "request_latency")
COMPARED = [
    *itertools.product(TIMES, STATISTICS),
    ("output_sequence_length", "avg"),
    ("input_sequence_length", "avg"),
    ("output_token_throughput", "avg"),
    ("request_throughput", "avg"),
]
SERVER = {
    "time_to_first_token": "vllm:time_to_first_token_seconds",
    "inter_token_latency": "vllm:request_time_per_output_token_seconds",
    "request_latency": "vllm:e2e_request_latency_seconds",
}
BY_SERVER, AFTER_SERVER = "{} by the server", "{} after the server"
RATE_WARM_UP = 2
Figures = dict[str, float]
Sums = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Load:
    """`concurrency` requests at a time, or `rate` a second at even distances."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"concurrency {self.concurrency}" if self.concurrency is not None else f"{self.rate:g} requests/s"

    @property
    def num_warm_up(self) -> int:
        return self.concurrency or RATE_WARM_UP

    def num_requests(self, per_client: int, seconds: float) -> int:
        return per_client * self.concurrency if self.concurrency is not None else round(seconds * (self.rate or 0.0))

    @property
    def words(self) -> list[str]:
        """As options that both tools know."""
        if self.concurrency is not None:
            return ["--concurrency", str(self.concurrency)]
        return ["--request-rate", f"{self.rate:g}"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One tool at one load, once."""

    args: argparse.Namespace
    load: Load
    num_requests: int
    prompts: Path
    folder: Path

    def ours(self) -> Figures:
        outcome = self.folder / "ours.json"
        command = [sys.executable, "-m", "slipstream.cluster.cli", "bench", self.args.url, "--input", str(self.prompts)]
        command += ["--osl", str(self.args.osl), *self.load.words, "--request-count", str(self.num_requests)]
        command += ["--warm-up", str(self.load.num_warm_up), "--tokenizer", str(self.args.tokenizer)]
        command += ["--arrivals", "constant", "--json", str(outcome)]
        run(command, self.folder)
        return figures(json.loads(outcome.read_text())["levels"][0]["metrics"])

    def theirs(self) -> Figures:
        args, artifacts = self.args, self.folder / "aiperf"
        command = [str(args.aiperf), "profile", "--model", args.model, "--url", args.url, "--endpoint-type", "chat"]
        command += ["--streaming", "--tokenizer", str(args.tokenizer), "--input-file", str(self.prompts)]
        command += ["--custom-dataset-type", "single_turn", "--osl", str(args.osl), "--use-server-token-count"]
        command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{args.osl}"]
        command += [*self.load.words, "--request-count", str(self.num_requests)]
        command += ["--arrival-pattern", "constant"] if self.load.rate is not None else []
        command += ["--warmup-request-count", str(self.load.num_warm_up), "--ui", "none"]
        command += ["--no-gpu-telemetry", "--no-server-metrics"]
        command += ["--workers-max", "1", "--record-processors", "1"]  # more of them only take the server's cores here
        run([*command, "--artifact-dir", str(artifacts)], self.folder)
        return figures(json.loads((artifacts / "profile_export_aiperf.json").read_text()))


def figures(shown: dict[str, dict[str, float]]) -> Figures:
    return {f"{name} {statistic}": shown[name][statistic] for name, statistic in COMPARED if name in shown}


def server_sums(url: str) -> Sums:
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


def with_server(found: Figures, before: Sums, after: Sums) -> Figures:
    """What the server says of the same requests, on average, and what the client reads more."""
    shown = dict(found)
    for metric, (seconds, count) in before.items():
        if after[metric][1] > count:
            average_ms = 1e3 * (after[metric][0] - seconds) / (after[metric][1] - count)
            shown[BY_SERVER.format(metric)] = average_ms
            shown[AFTER_SERVER.format(metric)] = found[f"{metric} avg"] - average_ms
    return shown


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")


def measured_rounds(args: argparse.Namespace, loads: Sequence[Load], first: int) -> Iterator[dict[str, object]]:
    """Each round of each tool at each load. Prompts differ always, or the second tool would find them in a cache."""
    words = prompt_words(args.tokenizer)
    source = Synthetic(Lengths(args.isl), Lengths(args.osl))
    with tempfile.TemporaryDirectory() as name:
        for number, (at, load) in itertools.product(range(first, first + args.rounds), enumerate(loads)):
            num_requests = load.num_requests(args.requests, args.seconds)
            for turn, tool in enumerate(("slipstream", "aiperf") if (number + at) % 2 else ("aiperf", "slipstream")):
                folder = Path(name) / f"{number}-{at}-{tool}"
                folder.mkdir()
                made = source.conversations(words, hash((number, at, turn)))
                texts = [one.turns[0].text for one in itertools.islice(made, num_requests + load.num_warm_up)]
                prompts = folder / "prompts.jsonl"
                prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
                trial = Trial(args, load, num_requests, prompts, folder)
                measure: Callable[[], Figures] = trial.ours if tool == "slipstream" else trial.theirs
                before = server_sums(args.url)
                found = with_server(measure(), before, server_sums(args.url))
                yield {"load": load.name, "tool": tool, "round": number, "figures": found}
                print(f"  round {number}, {load.name}: {tool}", file=sys.stderr, flush=True)


def verdict(key: str, ours: Sequence[Figures], theirs: Sequence[Figures]) -> str:
    if is_within_spread([one[key] for one in ours], [one[key] for one in theirs]):
        return "agree"
    metric = key.rsplit(" ", 1)[0]
    after = AFTER_SERVER.format(metric)
    if key == f"{metric} avg" and all(after in one for one in (*ours, *theirs)):
        return "server" if is_within_spread([one[after] for one in ours], [one[after] for one in theirs]) else "client"
    return "differ"


def is_within_spread(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    spread = max(max(ours) - min(ours), max(theirs) - min(theirs))
    return abs(statistics.median(ours) - statistics.median(theirs)) <= spread


def table(load: str, ours: Sequence[Figures], theirs: Sequence[Figures]) -> Table:
    rows: list[list[Cell]] = []
    for key in (key for key in ours[0] if all(key in one for one in (*ours, *theirs))):
        cells: list[Cell] = []
        medians = []
        for rounds in (ours, theirs):
            values = [one[key] for one in rounds]
            medians.append(statistics.median(values))
            cells += [medians[-1], min(values), max(values)]
        difference = f"{medians[0] / medians[1] - 1:+.1%}" if medians[1] else "-"
        is_after = key.endswith("after the server")
        judged = "" if is_after or key.endswith("by the server") else verdict(key, ours, theirs)
        rows.append([key, *cells, "" if is_after else difference, judged])
    columns = ("metric", "slipstream", "low", "high", "aiperf", "low", "high", "difference", "")
    return Table(f"{load}, {len(ours)} rounds each (times in ms)", columns, rows)


def read_rounds(path: Path | None) -> list[dict[str, object]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    args = parse_arguments()
    loads = [Load(concurrency=count) for count in args.concurrency] + [Load(rate=rate) for rate in args.request_rate]
    rounds = read_rounds(args.kept)
    first = 1 + max((int(str(one["round"])) for one in rounds), default=-1)
    for one in measured_rounds(args, loads, first):
        rounds.append(one)
        if args.kept is not None:
            with args.kept.open("a") as file:
                file.write(json.dumps(one) + "\n")
    for name in dict.fromkeys(str(one["load"]) for one in rounds):
        tools: dict[str, list[Figures]] = {"slipstream": [], "aiperf": []}
        for one in rounds:
            if one["load"] == name:
                tools[str(one["tool"])].append(one["figures"])  # type: ignore[arg-type]
        if all(tools.values()):
            print(table(name, tools["slipstream"], tools["aiperf"]).text(140))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="slipstream-demo")
    parser.add_argument("--tokenizer", type=lambda text: Path(text).resolve(), default=ROOT / "models/slipstream-demo")
    parser.add_argument("--isl", type=int, default=100)
    parser.add_argument("--osl", type=int, default=32)
    parser.add_argument("--concurrency", type=lambda text: [int(n) for n in text.split(",") if n], default=[8])
    parser.add_argument("--request-rate", type=lambda text: [float(n) for n in text.split(",") if n], default=[])
    parser.add_argument("--requests", type=int, default=20, help="of each client, at a concurrency")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a request rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=Path, help="JSON lines that have the rounds so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
