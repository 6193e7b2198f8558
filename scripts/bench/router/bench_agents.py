"""What a turn of a long conversation costs the router: 200 agents with tools, 40 turns, up to 100,000 tokens.

Workers are mock workers, which take no time. Figures are by the length of the conversation: CPU time of the router for
a turn, the client's TTFT, and memory.

    python scripts/bench/router/bench_agents.py                                    200 sessions, some minutes
    python scripts/bench/router/bench_agents.py --sessions 12 --turns 8 --rate 8   under a minute
    python scripts/bench/router/bench_agents.py --beside ../before --sessions 12 --turns 8 --rate 4

The turns come at `--rate` (exponential gaps), so that TTFT is not that of a full core. It has everything in it: the
request's way over the socket, workers, and other programs of this machine. `--beside` measures another checkout, too,
behind this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import yaml
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "scripts" / "bench" / "router"
sys.path.insert(0, str(PARTS))

from agent_sessions import Sizes, Texts  # noqa: E402
from agents_client import Agents, TurnOutcome  # noqa: E402
from bench_router import Vocabulary  # noqa: E402
from stacks import MODEL, SHAPES, Stack, slipstream  # noqa: E402

COLUMNS = (
    "stack",
    "tokens",
    "KiB",
    "cached",
    "router ms",
    "worker ms",
    "client ms",
    "TTFT p50 ms",
    "p99",
    "router MiB",
)


def chars_per_token(model_dir: Path, words: list[str]) -> float:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    text = Texts(words, 4.0, 0).of(10_000)
    return len(text) / len(tokenizer.encode(text, add_special_tokens=False).ids)


@contextmanager
def client(load: Agents) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PARTS / "agents_client.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        running.stdin.write(json.dumps(asdict(load)))
        running.stdin.close()
        try:
            yield running
        finally:
            running.terminate()


def row(stack: str, outcome: TurnOutcome) -> list[str]:
    def cpu_ms(*roles: str) -> str:
        return f"{sum(outcome.cpu_s.get(role, 0.0) for role in roles) * 1e3 / max(outcome.num_good, 1):.2f}"

    ttft = [f"{outcome.ttft_ms[percent]:.1f}" if outcome.ttft_ms else "-" for percent in (50, 99)]
    memory = f"{outcome.memory_mib['router'] + outcome.memory_mib.get('fronts', 0.0):.0f}"
    sizes = f"{outcome.prompt_tokens:,}", f"{outcome.body_bytes / 1024:.0f}", f"{outcome.cached_tokens:,}"
    return [stack, *sizes, cpu_ms("router", "fronts"), cpu_ms("workers"), cpu_ms("client"), *ttft, memory]


def measure(stacks: list[Stack], args: argparse.Namespace, vocabulary: Vocabulary, ratio: float) -> int:
    """Prints a line for each step. Returns the number of requests that failed."""
    num_failed = 0
    shown = {round(1 + at * (args.turns - 1) / max(args.rows - 1, 1)) for at in range(args.rows)}
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "---:|" * (len(COLUMNS) - 1), flush=True)
    for stack in stacks:
        load = Agents(
            stack.url, MODEL, vocabulary.words, args.sessions, args.turns, args.max_tokens, ratio, args.osl,
            args.rate, args.seed, stack.pids(),
        )  # fmt: skip
        with client(load) as running:
            assert running.stdout is not None
            for line in running.stdout:
                outcome = TurnOutcome(**json.loads(line))
                num_failed += sum(outcome.errors.values())
                if outcome.turn in shown or outcome.errors:
                    print("| " + " | ".join(row(stack.name, outcome)) + " |", flush=True)
                    if outcome.errors:
                        print(f"turn {outcome.turn}: {outcome.errors}", file=sys.stderr)
                if args.results is not None:
                    with args.results.open("a") as file:
                        print(json.dumps([stack.name, asdict(outcome)]), file=file)
    return num_failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=ROOT / "models" / "slipstream-demo")
    parser.add_argument("--shape", choices=list(SHAPES), default="2d", help="prefill and decode workers")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=100_000, help="of the last turn, about")
    parser.add_argument("--osl", type=int, default=16)
    parser.add_argument("--rate", type=float, default=20.0, help="turns a second, of all sessions together")
    parser.add_argument("--rows", type=int, default=6, help="how many of the turns are shown")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--router", type=yaml.safe_load, default={}, help="YAML laid on the router's configuration")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another version of this repository, too")
    parser.add_argument("--results", type=Path, help="a file that gets all outcomes")
    args = parser.parse_args()
    model_dir = args.model_dir.resolve()
    vocabulary = Vocabulary.of(model_dir)
    ratio = chars_per_token(model_dir, vocabulary.words)
    num_pages = args.sessions * Sizes(args.turns, args.max_tokens, ratio).max_tokens // 16 * 2 + 65_536
    settings = {
        "vocab_size": str(Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab_size()),
        "max_model_len": "131072",
        "max_queued_tokens": "4194304",
        "num_pages": str(num_pages),
    }
    with ExitStack() as running:
        roots = [ROOT] if args.beside is None else [ROOT, args.beside.resolve()]
        stacks = [
            running.enter_context(slipstream(model_dir, args.shape, settings, args.router, root)) for root in roots
        ]
        num_failed = measure(stacks, args, vocabulary, ratio)
    if num_failed:
        raise SystemExit(f"{num_failed} requests failed")


if __name__ == "__main__":
    main()
