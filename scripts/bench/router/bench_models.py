"""One router with several models, and mock workers: what a model costs, and what one model's flood does to another.

    python scripts/bench/router/bench_models.py cost --beside ../before   1 to 100 models; a checkout that serves one
    python scripts/bench/router/bench_models.py flood                     a tenfold flood of one model beside another

`cost`: a closed loop of streaming clients. Each model has one worker; all get requests, at random, or the first two do.
The more workers share the requests, the less each of their messages holds, so each row stands beside a single model
with as many workers. Stacks take turns; figures are medians over the rounds. A checkout that is named serves one model
with two workers.

`flood`: model `quiet` gets its requests at a steady rate (exponential gaps) the whole time, model `noisy` at its own
rate and then at ten times that, which is more than its worker can do. `queue` is from a request's arrival at the
dispatcher to its placement, as `GET /v1/requests` reports it; TTFT is the client's. Quiet's worker is measured once
with room for all and once nearly full.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "scripts" / "bench" / "router"
sys.path.insert(0, str(PARTS))

from bench_router import Vocabulary, measure, median_of, per_request_us  # noqa: E402
from load_client import Load, Outcome, percentiles  # noqa: E402
from open_client import Arrived  # noqa: E402
from stacks import ALWAYS_LOCAL, MODEL, Stack, StackError, process, slipstream, wait_ready  # noqa: E402

MODEL_DIR = ROOT / "models" / "slipstream-demo"
BUSY = 2  # models that get requests where not all do
OSL = 16
ROOMY = {"max_slots": 64, "step_s": 0.01}
NEARLY_FULL = {"max_slots": 4, "step_s": 0.005}  # 4 sequences of 16 steps of 5 ms: 50 requests a second
QUIET_PER_S = 30.0
NOISY_PER_S = 20.0
FLOOD = 10
NOISY = {"max_slots": 4, "step_s": 0.01}  # 25 requests a second


@contextmanager
def serving(
    workers: dict[str, dict[str, float]],
    *,
    count: int = 1,
    are_apart: bool = False,
    router: dict[str, object] | None = None,
) -> Iterator[Stack]:
    """A router with these models, each with `count` decode workers of the given profile. With `are_apart`, those of
    each model are a process of their own."""
    config = {
        "models": [{"name": model, "model_dir": str(MODEL_DIR)} for model in workers],
        "token": "bench",
        "router": {"http": {"port": 0}, "dispatch": {"local_prefill_max_tokens": ALWAYS_LOCAL}, **(router or {})},
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        folder = Path(directory)
        (folder / "router.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "slipstream.router.main", "--config", str(folder / "router.yaml")]
        front = running.enter_context(process("router", command, folder, {}, subprocess.PIPE))
        assert front.stdout is not None
        line = front.stdout.readline()
        if not line:
            raise StackError(f"the router did not start:\n{(folder / 'router.log').read_text()[-2000:]}")
        addresses = json.loads(line)
        groups = [{model: profile} for model, profile in workers.items()] if are_apart else [workers]
        processes = []
        for number, group in enumerate(groups):
            command = [
                sys.executable,
                str(PARTS / "model_workers.py"),
                addresses["workers"],
                json.dumps(group),
                str(count),
            ]
            token = {"SLIPSTREAM_WORKER_TOKEN": "bench"}
            processes.append(running.enter_context(process(f"workers{number}", command, folder, token)))
        wait_ready(f"{addresses['http']}/health/ready", None, folder)
        yield Stack("slipstream", addresses["http"], {"router": [front], "workers": processes})


def load_for(stack: Stack, args: argparse.Namespace, words: Vocabulary, seed: int, models: list[str]) -> Load:
    return Load(
        url=stack.url,
        model=models[0],
        words=words.words,
        num_words=max(128 - words.num_template_tokens, 7),
        osl=OSL,
        concurrency=args.concurrency,
        warm_up_s=args.warm_up,
        measure_s=args.seconds,
        seed=seed,
        pids=stack.pids(),
        models=models,
    )


def compare_costs(args: argparse.Namespace) -> None:
    words = Vocabulary.of(MODEL_DIR)
    with ExitStack() as running:
        cells: list[tuple[str, Stack, list[str]]] = []
        for before in args.beside:
            stack = running.enter_context(
                slipstream(MODEL_DIR, "2d", {}, {"dispatch": {"local_prefill_max_tokens": ALWAYS_LOCAL}}, before, False)
            )
            cells.append((f"before ({before.name})", stack, [MODEL]))
        for count in map(int, args.models.split(",")):
            names = [f"model-{number}" for number in range(count)]
            for busy in sorted({BUSY, count}):  # a router for each row: what one has cached must not serve another
                stack = running.enter_context(serving({name: {} for name in names}))
                cells.append((f"{count} models, {busy} busy", stack, names[:busy]))
            one = running.enter_context(serving({MODEL: {}}, count=count))
            cells.append((f"1 model with {count} workers", one, [MODEL]))
        results: dict[str, list[Outcome]] = {name: [] for name, _, _ in cells}
        for number in range(args.rounds):
            for name, stack, models in cells[number % len(cells) :] + cells[: number % len(cells)]:
                results[name].append(measure(load_for(stack, args, words, time.time_ns(), models)))
    print("| stack | requests/s | router CPU us a request | TTFT p50 / p99 ms | errors | cores of others |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, outcomes in results.items():
        rate, cpu_us = (
            median_of(outcomes, lambda o: o.num_answers / o.seconds),
            median_of(outcomes, per_request_us("router")),
        )
        ttft = [median_of(outcomes, lambda o, p=p: o.ttft_ms[p]) for p in (50, 99)]  # type: ignore[misc]
        errors, others = sum(o.num_errors for o in outcomes), max(o.others_cores for o in outcomes)
        print(f"| {name} | {rate:,.0f} | {cpu_us:.0f} | {ttft[0]:.2f} / {ttft[1]:.2f} | {errors} | {others:.2f} |")


@dataclass(frozen=True, slots=True)
class Window:
    """What the quiet model's requests met while the other one had so many requests a second."""

    noisy_per_s: float
    queue_ms: list[float]
    quiet: Arrived
    noisy: Arrived


def flood(args: argparse.Namespace) -> None:
    words = Vocabulary.of(MODEL_DIR)
    print(
        "| worker of the quiet model | noisy: requests/s | queue p50 / p99 ms | TTFT p50 / p99 ms | bound | refused |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for kind, profile in (("with room", ROOMY), ("nearly full", NEARLY_FULL)):
        windows: list[Window] = []
        router = {"history_requests": 50_000}
        for number in range(args.rounds):
            for times in (1, FLOOD):
                with serving({"quiet": profile, "noisy": NOISY}, are_apart=True, router=router) as stack:
                    windows.append(window(stack, args, words, number, NOISY_PER_S * times))
        calm = [one for one in windows if one.noisy_per_s == NOISY_PER_S]
        loud = [one for one in windows if one.noisy_per_s != NOISY_PER_S]
        bound_ms = 2 + 1.2 * median_p(calm, 99)
        for these, bound in ((calm, "-"), (loud, f"{bound_ms:.2f}")):
            ttft = [statistics.median(one.quiet.ttft_ms[p] for one in these) for p in (50, 99)]
            refused = sum(one.noisy.num_refused for one in these), sum(one.quiet.num_refused for one in these)
            print(
                f"| {kind} | {these[0].noisy_per_s:g} | {median_p(these, 50):.2f} / {median_p(these, 99):.2f} | "
                f"{ttft[0]:.2f} / {ttft[1]:.2f} | {bound} | noisy {refused[0]}, quiet {refused[1]} |",
                flush=True,
            )


def median_p(windows: list[Window], percent: int) -> float:
    return statistics.median(one.queue_ms[percent] for one in windows)


def window(stack: Stack, args: argparse.Namespace, words: Vocabulary, seed: int, noisy_per_s: float) -> Window:
    base = replace(load_for(stack, args, words, seed, ["quiet"]), pids={})
    with (
        arriving(replace(base, models=["noisy"], seed=seed + 1000), noisy_per_s) as noisy,
        arriving(base, QUIET_PER_S) as quiet,
    ):
        quiet_line = quiet.stdout.readline() if quiet.stdout is not None else ""
        with urllib.request.urlopen(f"{stack.url}/v1/requests?model=quiet&limit=1000") as answer:
            records = json.load(answer)["data"]
        noisy_line = noisy.stdout.readline() if noisy.stdout is not None else ""
    waits = [record["queue_s"] * 1e3 for record in records if record["queue_s"] is not None]
    waits = waits[: round(QUIET_PER_S * args.seconds)]  # the newest, without those of the warm-up
    return Window(noisy_per_s, percentiles(waits), Arrived(**json.loads(quiet_line)), Arrived(**json.loads(noisy_line)))


@contextmanager
def arriving(load: Load, per_s: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PARTS / "open_client.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        running.stdin.write(json.dumps({"load": asdict(load), "per_s": per_s}))
        running.stdin.close()
        yield running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "flood"))
    parser.add_argument("--models", default="2,10,100", help="numbers of models (cost)")
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another checkout (cost)")
    parser.add_argument("--concurrency", type=int, default=32, help="clients (cost)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=1.0)
    args = parser.parse_args()
    compare_costs(args) if args.what == "cost" else flood(args)


if __name__ == "__main__":
    main()
