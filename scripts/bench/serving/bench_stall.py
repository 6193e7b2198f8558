"""Do long prompts stall the streams of others? Gaps between tokens while long prompts arrive, and without them.

    python scripts/bench/serving/bench_stall.py --placement remote     prefill worker: prompts over 64 tokens
    python scripts/bench/serving/bench_stall.py --placement local      decode worker: in chunks beside its streams
    python scripts/bench/serving/bench_stall.py --placement slo        the default: scored

Each starts a cluster of one prefill and one decode worker with a thread each, and a random model of 125M parameters
(`scripts/bench/engine/yardstick_models.py`), or the model in the directory that `--model` names. Phases alternate:
streams alone, streams with one long prompt after the other. A gap is the time between two reads with text of a stream,
as an HTTP client sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.engine.yardstick_models import make_model  # noqa: E402
from scripts.bench.serving.bench_serving import cluster, completions_of  # noqa: E402
from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target  # noqa: E402
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer  # noqa: E402
from slipstream.cluster.tools.bench.client.request_sender import RequestSender  # noqa: E402
from slipstream.cluster.tools.bench.load.measures import percentile  # noqa: E402

SHORT_TOKENS = 32
FIRST_GAPS = 3  # of a stream, not counted: others are beginning, too
TIMEOUT_S = 300.0  # of a request
LINES = {"remote": 64, "local": 10**9, "slo": None}


async def stream(sender: RequestSender, target: Target, prompt: list[int], max_tokens: int) -> ClientAnswer:
    """Raises BenchError if it is not a good one."""
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = await sender.send(target.request(body))
    if answer.ttft_s is None or not answer.is_good:
        raise BenchError(f"{answer.kind or 'no text'}: {answer.error}")
    return answer


async def phase(
    target: Target, rng: random.Random, vocab_size: int, args: argparse.Namespace, disturbed: bool
) -> dict[str, list[float]]:
    """Gaps of all streams, and the TTFT of the long prompts that came meanwhile."""
    first_tokens: list[float] = []

    def prompt(length: int) -> list[int]:
        return [rng.randrange(10, vocab_size) for _ in range(length)]

    sender = RequestSender(target, TIMEOUT_S)

    async def disturb() -> None:
        while True:
            answer = await stream(sender, target, prompt(args.long), 2)
            first_tokens.append(answer.ttft_s or 0.0)
            await asyncio.sleep(args.pause_s)

    try:
        streams = [
            asyncio.create_task(stream(sender, target, prompt(SHORT_TOKENS), args.tokens)) for _ in range(args.streams)
        ]
        await asyncio.sleep(0.3)  # they are running when the first long prompt comes
        disturbing = asyncio.create_task(disturb()) if disturbed else None
        came = await asyncio.gather(*streams)
        if disturbing is not None:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
    finally:
        sender.close()
    gaps = [gap_s for answer in came for gap_s, _ in answer.gaps[FIRST_GAPS:]]
    return {"gaps": gaps, "ttft": first_tokens}


def model_of(args: argparse.Namespace) -> Path:
    named = Path(args.model)
    return named.resolve() if (named / "config.json").exists() else make_model(args.model, args.models)


@contextmanager
def running(model: Path, args: argparse.Namespace) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        engine = {"device": "cpu", "kv_cache_mib": 1024, "num_threads": args.threads, "max_step_tokens": args.chunk}
        settings = {
            "model": {"path": str(model)},
            "engine": engine,
            "router": {"dispatch": {"policy": "slo"}},
        }
        path = Path(directory) / "stall.yaml"
        path.write_text(yaml.safe_dump(settings))
        with cluster(path, LINES[args.placement]) as url:
            yield url


async def measure(url: str, vocab_size: int, args: argparse.Namespace) -> None:
    target, rng = completions_of(url), random.Random(args.seed)
    await phase(target, rng, vocab_size, args, True)  # warms up, and lets the router learn
    gaps: dict[bool, list[float]] = {False: [], True: []}
    first: list[float] = []
    for _ in range(args.rounds):
        for disturbed in (False, True):
            result = await phase(target, rng, vocab_size, args, disturbed)
            gaps[disturbed] += result["gaps"]
            first += result["ttft"]
    for disturbed, name in ((False, "alone"), (True, f"with prompts of {args.long}")):
        values = gaps[disturbed]
        figures = {f"gap_p{p}_ms": round(1e3 * percentile(values, p / 100), 2) for p in (50, 90, 99)}
        print(
            json.dumps({"placement": args.placement, "streams": name, **figures, "max_ms": round(max(values) * 1e3, 1)})
        )
    ratio = percentile(gaps[True], 0.99) / percentile(gaps[False], 0.99)
    ttft = round(1e3 * percentile(first, 0.5), 1)
    print(
        json.dumps(
            {"placement": args.placement, "p99_ratio": round(ratio, 2), "long": len(first), "long_ttft_p50_ms": ttft}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placement", choices=list(LINES), default="slo")
    parser.add_argument("--model", default="M-bf16", help="M-bf16, S-f32 .., or a directory")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "slipstream-yardsticks")
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=250, help="of each stream")
    parser.add_argument("--long", type=int, default=2000, help="tokens of a long prompt")
    parser.add_argument("--chunk", type=int, default=512, help="max_step_tokens of both workers")
    parser.add_argument("--threads", type=int, default=1, help="that compute, of each worker")
    parser.add_argument("--pause-s", type=float, default=0.5, help="between long prompts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = model_of(args)
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    with running(model, args) as url:
        asyncio.run(measure(url, vocab_size, args))


if __name__ == "__main__":
    main()
