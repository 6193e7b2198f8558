"""The router alone, under load: requests and tokens per second, latencies, CPU time by process; beside a peer's.

Workers are mock workers, which run no model and take no time, so that nothing but the router, the client and the
protocol between them is measured. All share this machine's cores.

    python scripts/bench/router/bench_router.py               the router with one prefill and one decode worker
    python scripts/bench/router/bench_router.py --dynamo ~/dynamo --cells 128/16/32,128/16/128,1024/128/32
    python scripts/bench/router/bench_router.py --beside ../before          and the router of another checkout, in turns
    python scripts/bench/router/bench_router.py --shape 2d --cells 128/16/1 --quick-ack
    python scripts/bench/router/bench_router.py --long-prompts 32           ITL of streams while long prompts arrive

A cell is ISL/OSL/concurrency. Rounds are interleaved (every stack in turn, one cell after the other), figures are
medians over the rounds. The prompts are words that the model's tokenizer has a token for, through its chat template; no
two are alike. Dynamo is public: `pip install ai-dynamo==1.6.1`, and where its dependency `aisimulate` has no release
that installs, the latest development version of that with `--no-deps`.

CPU time is in us per request, all tokens included, and by role: the router (or frontend) with its children, workers,
client. On a machine that others use, too, `--lock FILE` keeps an exclusive lock (flock) on that file during each
measurement.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import yaml
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "scripts" / "bench" / "router"
sys.path.insert(0, str(PARTS))

from load_client import NUM_UNIQUE_WORDS, Load, Outcome  # noqa: E402
from stacks import MODEL, SHAPES, Stack, dynamo, slipstream  # noqa: E402

LONG_PROMPT_CHARS = 100_000
STEP_S = 0.01  # of a mock worker in the test with long prompts: a decode step of a mid-sized model
OTHERS_CORES = 0.15  # more than this of other programs, and the figure is marked


@dataclass(frozen=True, slots=True)
class Cell:
    isl: int
    osl: int
    concurrency: int

    @classmethod
    def parse(cls, text: str) -> Cell:
        isl, osl, concurrency = map(int, text.split("/"))
        return cls(isl, osl, concurrency)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words that are one token each after a space, and how many tokens the chat template adds."""

    words: list[str]
    num_template_tokens: int

    @classmethod
    def of(cls, model_dir: Path) -> Vocabulary:
        # Imported here: a peer could be measured without the router's dependencies.
        from slipstream.router.text.added_tokens import named_tokens
        from slipstream.router.text.template.chat_template import ChatTemplate
        from slipstream.router.text.tokenizer_files import TokenizerFiles

        files = TokenizerFiles.read(model_dir)
        tokenizer = Tokenizer.from_str(files.tokenizer_json)
        assert files.chat_template is not None
        named = {name: token.content for name, token in named_tokens(files.config)}
        template = ChatTemplate(files.chat_template, named)

        def num_tokens(text: str) -> int:
            rendered = template.render([{"role": "user", "content": text}])
            return len(tokenizer.encode(rendered, add_special_tokens=False).ids)

        pieces = sorted(piece[1:] for piece in tokenizer.get_vocab() if piece.startswith("\u0120"))
        words = [word for word in pieces if 3 <= len(word) <= 9 and word.isascii() and word.islower()]
        words = [word for word in words if len(tokenizer.encode(word, add_special_tokens=False).ids) == 1] or words
        draw = random.Random(1)
        overheads = {num_tokens(" ".join(draw.choices(words, k=count))) - count for count in (16, 128, 1000)}
        if len(overheads) != 1:
            raise SystemExit(f"the chat template of {model_dir} adds a varying number of tokens: {sorted(overheads)}")
        return cls(words, overheads.pop())


def measure(load: Load) -> Outcome:
    """Run the client."""
    with client(load) as running:
        return outcome(running)


@contextmanager
def client(load: Load) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PARTS / "load_client.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        running.stdin.write(json.dumps(asdict(load)))
        running.stdin.close()
        yield running


def outcome(running: subprocess.Popen[str]) -> Outcome:
    assert running.stdout is not None
    line = running.stdout.readline()
    if not line:
        raise SystemExit("the client failed")
    return Outcome(**json.loads(line))


@contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """With an exclusive lock on the file, if one was named."""
    if path is None:
        yield
        return
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def median_of(outcomes: list[Outcome], figure: Callable[[Outcome], float]) -> float:
    return statistics.median(map(figure, outcomes))


def per_request_us(*roles: str) -> Callable[[Outcome], float]:
    return lambda outcome: sum(outcome.cpu_s.get(role, 0.0) for role in roles) * 1e6 / max(outcome.num_answers, 1)


COLUMNS: list[tuple[str, Callable[[Outcome], float], str]] = [
    ("req/s", lambda o: o.num_answers / o.seconds, ".0f"),
    ("tok/s", lambda o: o.num_tokens / o.seconds, ".0f"),
    ("TTFT p50 ms", lambda o: o.ttft_ms[50] if o.ttft_ms else float("nan"), ".2f"),
    ("p99", lambda o: o.ttft_ms[99] if o.ttft_ms else float("nan"), ".2f"),
    ("ITL p50 ms", lambda o: o.itl_ms[50] if o.itl_ms else float("nan"), ".2f"),
    ("p99", lambda o: o.itl_ms[99] if o.itl_ms else float("nan"), ".2f"),
    ("router us/req", per_request_us("router", "fronts"), ".0f"),
    ("of it fronts", per_request_us("fronts"), ".0f"),
    ("workers", per_request_us("workers"), ".0f"),
    ("client", per_request_us("client"), ".0f"),
]


def print_table(results: dict[tuple[Cell, str], list[Outcome]]) -> None:
    names = ["ISL/OSL", "c", "stack", *(name for name, _, _ in COLUMNS), "errors", "others"]
    rows = [names]
    for (cell, stack), outcomes in results.items():
        others = max(outcome.others_cores for outcome in outcomes)
        rows.append(
            [
                f"{cell.isl}/{cell.osl}",
                str(cell.concurrency),
                stack,
                *(format(median_of(outcomes, figure), form) for _, figure, form in COLUMNS),
                str(sum(outcome.num_errors for outcome in outcomes)),
                f"{others:.2f}{'!' if others > OTHERS_CORES else ''}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")


def print_marginal(results: dict[tuple[Cell, str], list[Outcome]]) -> None:
    """CPU of the router for one more streamed token: two cells that differ in the OSL alone."""
    router = per_request_us("router", "fronts")
    for (cell, stack), outcomes in results.items():
        for (other, same), longer in results.items():
            if same == stack and other.osl > cell.osl and replace(other, osl=cell.osl) == cell:
                token_us = (median_of(longer, router) - median_of(outcomes, router)) / (other.osl - cell.osl)
                request_us = median_of(outcomes, router) - token_us * cell.osl
                print(
                    f"{stack}, ISL {cell.isl}, c={cell.concurrency}: router {token_us:.1f} us per streamed token, "
                    f"{request_us:.0f} us per request beside its tokens (OSL {cell.osl} and {other.osl})"
                )


def load_of(stack: Stack, cell: Cell, vocabulary: Vocabulary, args: argparse.Namespace, seed: int) -> Load:
    return Load(
        url=stack.url,
        model=args.model or MODEL,
        words=vocabulary.words,
        num_words=max(cell.isl - vocabulary.num_template_tokens, NUM_UNIQUE_WORDS + 1),
        osl=cell.osl,
        concurrency=cell.concurrency,
        warm_up_s=args.warm_up,
        measure_s=args.seconds,
        seed=seed,
        quick_ack=args.quick_ack,
        pids=stack.pids(),
    )


def compare(stacks: list[Stack], args: argparse.Namespace, vocabulary: Vocabulary) -> None:
    cells = [Cell.parse(text) for text in args.cells.split(",")]
    results: dict[tuple[Cell, str], list[Outcome]] = {(c, stack.name): [] for c in cells for stack in stacks}
    for number in range(args.rounds):
        for cell in cells:
            for stack in stacks[number % len(stacks) :] + stacks[: number % len(stacks)]:
                with alone(args.lock):
                    result = measure(load_of(stack, cell, vocabulary, args, seed=time.time_ns()))
                results[cell, stack.name].append(result)
                for error, count in result.errors.items():
                    print(f"{stack.name}: {count} x {error}", file=sys.stderr)
                if args.results is not None:
                    with args.results.open("a") as file:
                        print(json.dumps([asdict(cell), stack.name, asdict(result)]), file=file)
    if args.results is not None:
        results = earlier_results(args.results)
    print_table(results)
    print_marginal(results)


def earlier_results(path: Path) -> dict[tuple[Cell, str], list[Outcome]]:
    """Those of this run and of runs before it."""
    results: dict[tuple[Cell, str], list[Outcome]] = {}
    for line in path.read_text().splitlines():
        cell, stack, outcome = json.loads(line)
        results.setdefault((Cell(**cell), stack), []).append(Outcome(**outcome))
    return dict(sorted(results.items(), key=lambda item: (astuple(item[0][0]), item[0][1])))


def disturb(stack: Stack, args: argparse.Namespace, vocabulary: Vocabulary) -> None:
    """ITL of streams alone, and while `--long-prompts` connections send one long prompt after the other."""
    streams = Cell(isl=64, osl=128, concurrency=8)
    words_per_prompt = LONG_PROMPT_CHARS // (1 + round(statistics.mean(map(len, vocabulary.words))))
    for number in range(args.rounds):
        with alone(args.lock):
            quiet = measure(load_of(stack, streams, vocabulary, args, number))
        long = load_of(stack, Cell(words_per_prompt, 1, args.long_prompts), vocabulary, args, number)
        with alone(args.lock), client(replace(long, pids={})) as running:
            disturbed = measure(load_of(stack, streams, vocabulary, args, number))
            prompts = outcome(running)
        before, after = quiet.itl_ms, disturbed.itl_ms
        print(
            f"round {number}: ITL ms p50 {before[50]:.2f} -> {after[50]:.2f}, p99 {before[99]:.2f} -> {after[99]:.2f} "
            f"({after[99] / before[99]:.2f}x), max {before[100]:.1f} -> {after[100]:.1f}; "
            f"{prompts.num_answers / prompts.seconds:.1f} prompts/s of {LONG_PROMPT_CHARS} characters; "
            f"errors {disturbed.errors | prompts.errors}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=ROOT / "models" / "slipstream-demo")
    parser.add_argument("--shape", choices=list(SHAPES), default="1p1d", help="prefill and decode workers")
    parser.add_argument("--cells", default="128/16/1,128/16/32,128/16/128,128/16/256,128/128/32,1024/128/32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each cell")
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--quick-ack", action="store_true", help="the client acknowledges at once (TCP_QUICKACK)")
    parser.add_argument("--router", type=yaml.safe_load, default={}, help="YAML laid on the router's configuration")
    parser.add_argument("--frontends", "--fronts", help="compare several numbers of front processes, as in 1,2")
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a server that runs already")
    parser.add_argument("--model", help="the model name that --url servers know")
    parser.add_argument("--dynamo", type=Path, metavar="VENV", help="a virtual environment that has ai-dynamo")
    parser.add_argument("--dynamo-modes", default="round-robin", help="its --router-mode, several with commas")
    parser.add_argument("--mocker-args", default="--speedup-ratio 1e6", help="for Dynamo's mocker; no time at all")
    parser.add_argument("--not-kept", action="store_true", help="and a router whose clients end with it")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another version of this repository, too")
    parser.add_argument("--long-prompts", type=int, metavar="N", help="the ITL while N connections send long prompts")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--results", type=Path, help="a file that keeps all outcomes; medians are over all in it")
    args = parser.parse_args()
    model_dir = args.model_dir.resolve()
    vocabulary = Vocabulary.of(model_dir)
    settings = {"vocab_size": str(Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab_size())}
    with ExitStack() as running:
        if args.long_prompts:
            settings |= {"step_s": str(STEP_S), "max_model_len": "131072", "max_queued_tokens": "4194304"}
            settings |= {"num_pages": "1048576"}
            disturb(running.enter_context(slipstream(model_dir, args.shape, settings, args.router)), args, vocabulary)
            return
        starters: list[AbstractContextManager[Stack]] = []
        for count in args.frontends.split(",") if args.frontends else [""]:
            router = args.router | ({"frontends": int(count)} if count else {})
            starters.append(slipstream(model_dir, args.shape, settings, router))
        if args.not_kept:
            starters.append(slipstream(model_dir, args.shape, settings, args.router, kept=False))
        if args.beside is not None:
            starters.append(slipstream(model_dir, args.shape, settings, args.router, args.beside.resolve()))
        for mode in args.dynamo_modes.split(",") if args.dynamo else []:
            starters.append(dynamo(args.dynamo, model_dir, args.shape, mode, args.mocker_args.split()))
        stacks = [running.enter_context(starter) for starter in starters]
        if args.frontends:
            counts = args.frontends.split(",")
            stacks[: len(counts)] = [
                replace(stack, name=f"slipstream {count} fronts") for stack, count in zip(stacks, counts, strict=False)
            ]
        stacks += [Stack(name, url, {}) for name, _, url in (text.partition("=") for text in args.url)]
        compare(stacks, args, vocabulary)


if __name__ == "__main__":
    main()
