"""Do long prompts stall the streams of others? Gaps between tokens while long prompts arrive, and without them.

    python scripts/bench_stall.py --placement remote        prompts over 64 tokens are computed by the prefill worker
    python scripts/bench_stall.py --placement local         the decode worker computes them in chunks beside its streams
    python scripts/bench_stall.py --placement slo           the default: scored

Each starts a cluster of one prefill and one decode worker with a thread each, and a random model of 125M parameters
(`scripts/engine_bench/yardstick_models.py`). Phases alternate: streams alone, streams with one long prompt after the
other. A gap is the time between two events of a stream, as an HTTP client sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.bench_serving import cluster, served_model  # noqa: E402
from scripts.engine_bench.yardstick_models import make_model  # noqa: E402

SHORT_TOKENS = 32
LINES = {"remote": 64, "local": 10**9, "slo": None}


async def stream(
    session: aiohttp.ClientSession, url: str, model: str, prompt: list[int], max_tokens: int
) -> list[float]:
    """When each event with text came; the first is the first token."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
    }
    times = []
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                if b'"error"' in line:
                    raise RuntimeError(line.decode())
                times.append(time.perf_counter())
    return times


async def phase(
    url: str, model: str, rng: random.Random, args: argparse.Namespace, disturbed: bool
) -> dict[str, list[float]]:
    """Gaps of all streams, and the TTFT of the long prompts that came meanwhile."""
    first_tokens: list[float] = []

    def prompt(length: int) -> list[int]:
        return [rng.randrange(10, 30_000) for _ in range(length)]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def disturb() -> None:
            while True:
                began_s = time.perf_counter()
                times = await stream(session, url, model, prompt(args.long), 2)
                first_tokens.append(times[0] - began_s)
                await asyncio.sleep(args.pause_s)

        streams = [
            asyncio.create_task(stream(session, url, model, prompt(SHORT_TOKENS), args.tokens))
            for _ in range(args.streams)
        ]
        await asyncio.sleep(0.3)  # they are running when the first long prompt comes
        disturbing = asyncio.create_task(disturb()) if disturbed else None
        came = await asyncio.gather(*streams)
        if disturbing is not None:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
    gaps = [after - before for times in came for before, after in itertools.pairwise(times[4:])]
    return {"gaps": gaps, "ttft": first_tokens}


@contextmanager
def running(args: argparse.Namespace) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(args.model, args.models)
        settings = {
            "model": {"path": str(model)},
            "engine": {"device": "cpu", "kv_cache_mib": 1024, "num_threads": 1, "max_step_tokens": args.chunk},
            "router": {"dispatch": {"policy": "slo"}},
        }
        path = Path(directory) / "stall.yaml"
        path.write_text(yaml.safe_dump(settings))
        with cluster(path, LINES[args.placement]) as url:
            yield url


def percentile(values: list[float], percent: int) -> float:
    return (
        statistics.quantiles(values, n=100, method="inclusive")[percent - 1] * 1e3 if len(values) > 1 else float("nan")
    )


async def measure(url: str, args: argparse.Namespace) -> None:
    model, rng = await served_model(url), random.Random(args.seed)
    await phase(url, model, rng, args, True)  # warms up, and lets the router learn
    gaps: dict[bool, list[float]] = {False: [], True: []}
    first: list[float] = []
    for _ in range(args.rounds):
        for disturbed in (False, True):
            result = await phase(url, model, rng, args, disturbed)
            gaps[disturbed] += result["gaps"]
            first += result["ttft"]
    for disturbed, name in ((False, "alone"), (True, f"with prompts of {args.long}")):
        values = gaps[disturbed]
        figures = {f"gap_p{p}_ms": round(percentile(values, p), 2) for p in (50, 90, 99)}
        print(
            json.dumps({"placement": args.placement, "streams": name, **figures, "max_ms": round(max(values) * 1e3, 1)})
        )
    ratio = percentile(gaps[True], 99) / percentile(gaps[False], 99)
    ttft = round(percentile(first, 50), 1)
    print(
        json.dumps(
            {"placement": args.placement, "p99_ratio": round(ratio, 2), "long": len(first), "long_ttft_p50_ms": ttft}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placement", choices=list(LINES), default="slo")
    parser.add_argument("--model", default="M-bf16")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "slipstream-yardsticks")
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=250, help="of each stream")
    parser.add_argument("--long", type=int, default=2000, help="tokens of a long prompt")
    parser.add_argument("--chunk", type=int, default=512, help="max_step_tokens of both workers")
    parser.add_argument("--pause-s", type=float, default=0.5, help="between long prompts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with running(args) as url:
        asyncio.run(measure(url, args))


if __name__ == "__main__":
    main()
