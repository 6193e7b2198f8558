"""TTFT, ITL and throughput of local and remote prefill, side by side on this machine.

Starts two clusters from one config that differ in a single key, `router.dispatch.local_prefill_max_tokens`: in
*remote* every prompt is computed by the prefill worker and its KV pages move to the decode worker, in *local* the
decode worker computes everything itself. Rounds are interleaved (local, remote, local, remote, ...) so that a noisy
neighbour hits both alike; the table shows medians over the rounds.

    python scripts/bench/serving/bench_serving.py                           both modes, a grid of ISL and concurrency
    python scripts/bench/serving/bench_serving.py --isl 512 --osl 64 --concurrency 1,8 --rounds 5
    python scripts/bench/serving/bench_serving.py --url http://127.0.0.1:8000    a server that takes token ids
    python scripts/bench/serving/bench_serving.py --url slipstream=http://127.0.0.1:8000 \\
        --url vllm=http://127.0.0.1:8001                                    several, compared in the same way

Prompts are random token ids, new ones for each request, so that no prefix cache helps; `ignore_eos` fixes the output
length. Closed loop: each of `concurrency` clients sends its next request when the last one has ended. Before each
round all servers rest for `--rest` seconds: threads of a server may spin on after its last step (vLLM's on a CPU for
about a second), and would take the cores from the server whose turn is next.
ITL is (latency - TTFT) / (OSL - 1), the definition of GenAI-Perf.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.request_sender import RequestSender
from slipstream.cluster.tools.bench.client.server_facts import model_cards
from slipstream.cluster.tools.bench.load.measures import percentile

ROOT = Path(__file__).resolve().parents[3]
NEVER_LOCAL, ALWAYS_LOCAL = 0, 10**9
TIMEOUT_S = 600.0  # of a request


@dataclass(frozen=True, slots=True)
class Round:
    """All requests of one mode in one cell of the grid, once."""

    answers: tuple[ClientAnswer, ...]
    wall_s: float

    @property
    def output_tokens_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.wall_s


@dataclass(frozen=True, slots=True)
class Cell:
    isl: int
    osl: int
    concurrency: int


async def complete(sender: RequestSender, target: Target, body: dict[str, Any]) -> ClientAnswer:
    """Stream one completion. Raises BenchError on any answer but a whole one."""
    answer = await sender.send(target.request(body))
    if not answer.is_good:
        raise BenchError(f"{answer.kind}: {answer.error}")
    if not answer.first_s or answer.num_tokens != body["max_tokens"]:
        raise BenchError(f"expected {body['max_tokens']} output tokens, the server counted {answer.num_tokens}")
    return answer


async def run_round(target: Target, vocab_size: int, cell: Cell, num_requests: int, seed: int) -> Round:
    """`num_requests` requests over `cell.concurrency` closed-loop clients."""
    rng = random.Random(seed)
    bodies: Iterator[dict[str, Any]] = iter(
        [
            {
                "prompt": [rng.randrange(16, vocab_size) for _ in range(cell.isl)],
                "max_tokens": cell.osl,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(num_requests)
        ]
    )
    answers: list[ClientAnswer] = []
    sender = RequestSender(target, TIMEOUT_S)

    async def client() -> None:
        for body in bodies:
            answers.append(await complete(sender, target, body))

    begin = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(cell.concurrency):
                group.create_task(client())
    except ExceptionGroup as failures:
        raise BenchError(str(failures.exceptions[0])) from failures.exceptions[0]
    finally:
        sender.close()
    return Round(tuple(answers), time.perf_counter() - begin)


def completions_of(url: str) -> Target:
    """The server's endpoint for completions, with the first model that it serves. Raises BenchError."""
    target = Target.of_url(f"{url}/v1/completions")
    cards = model_cards(target)
    if not cards:
        raise BenchError(f"{url} does not say which models it serves")
    return replace(target, model=str(cards[0]["id"]))


@contextmanager
def cluster(config: Path, local_prefill_max_tokens: int | None) -> Iterator[str]:
    """A cluster of its own from `config` with one key changed, on free ports; yields its URL. Raises BenchError."""
    settings = yaml.safe_load(config.read_text())
    model_path = (config.parent / settings["model"]["path"]).resolve()
    settings["model"]["path"] = str(model_path)
    settings["name"] = f"bench-{local_prefill_max_tokens}"
    router = settings.setdefault("router", {})
    router.setdefault("dispatch", {})["local_prefill_max_tokens"] = local_prefill_max_tokens
    router.setdefault("http", {})["port"] = 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.yaml"
        path.write_text(yaml.safe_dump(settings))
        server = subprocess.Popen(
            [sys.executable, "-m", "slipstream.cluster.serve", str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert server.stdout is not None
        output: list[str] = []
        try:
            for line in server.stdout:
                output.append(line)
                if found := re.match(r"Ready at (http://\S+)", line):
                    yield found.group(1)
                    return
            raise BenchError(f"the cluster did not start:\n{''.join(output)}")
        finally:
            server.send_signal(signal.SIGINT)
            for _ in server.stdout:  # keep the pipe empty while it drains
                pass
            server.wait()


def row(mode: str, cell: Cell, rounds: list[Round]) -> tuple[str, ...]:
    """Medians over the rounds of each round's figure, milliseconds."""

    def median_of(figure: Callable[[Round], float]) -> float:
        return statistics.median(figure(r) for r in rounds)

    def percentile_ms(attribute: Literal["ttft_s", "itl_s"], q: float) -> float:
        return 1e3 * median_of(lambda r: percentile([getattr(answer, attribute) for answer in r.answers], q))

    figures = [f"{percentile_ms(a, q):.1f}" for a in ("ttft_s", "itl_s") for q in (0.5, 0.99)]
    return (
        str(cell.isl),
        str(cell.osl),
        str(cell.concurrency),
        mode,
        *figures,
        f"{median_of(lambda r: r.output_tokens_per_s):.0f}",
        f"{median_of(lambda r: len(r.answers) / r.wall_s):.2f}",
    )


HEADER = ("ISL", "OSL", "clients", "server", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "out tok/s", "req/s")


def markdown(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(cells[i]) for cells in (HEADER, *rows)) for i in range(len(HEADER))]

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(HEADER), "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|", *map(line, rows)])


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def server(text: str) -> tuple[str, str]:
    """Name and URL from `NAME=URL` or a URL alone."""
    name, _, url = text.rpartition("=")
    return name or url, url.rstrip("/")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "local.yaml")
    parser.add_argument(
        "--url", type=server, action="append", help="[NAME=]URL: measure this running server, and start nothing"
    )
    parser.add_argument("--isl", type=integers, default=[128, 512, 1024], help="prompt lengths, tokens")
    parser.add_argument("--osl", type=int, default=64, help="output length, tokens")
    parser.add_argument("--concurrency", type=integers, default=[1, 8], help="closed-loop clients")
    parser.add_argument("--requests", type=int, default=24, help="per round and cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=1024, help="prompts use token ids below this")
    parser.add_argument("--rest", type=float, default=2.0, help="seconds before each round")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


async def measure(urls: dict[str, str], args: argparse.Namespace) -> list[tuple[str, ...]]:
    targets = {mode: completions_of(url) for mode, url in urls.items()}
    seeds = itertools.count(args.seed)
    rows = []
    for isl, concurrency in itertools.product(args.isl, args.concurrency):
        cell = Cell(isl, args.osl, concurrency)
        rounds: dict[str, list[Round]] = {mode: [] for mode in urls}
        for round_number in range(-1, args.rounds):
            for mode, target in targets.items():
                num_requests = concurrency if round_number < 0 else max(args.requests, concurrency)
                await asyncio.sleep(args.rest)
                result = await run_round(target, args.vocab, cell, num_requests, next(seeds))
                if round_number >= 0:  # the first round only warms up
                    rounds[mode].append(result)
        rows += [row(mode, cell, rounds[mode]) for mode in urls]
        print(f"  ISL {isl}, {concurrency} clients: done", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    args = parse_arguments()
    with ExitStack() as stack:
        if args.url:
            urls = dict(args.url)
        else:
            modes = {"local": ALWAYS_LOCAL, "remote": NEVER_LOCAL}
            urls = {mode: stack.enter_context(cluster(args.config, limit)) for mode, limit in modes.items()}
        print(markdown(asyncio.run(measure(urls, args))))


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"bench_serving: {error}")
