"""Do agents find their pages again after a tool? Kept for the predicted time, beside plain LRU, on a real engine.

    python scripts/bench/retention/bench_retention.py
    python scripts/bench/retention/bench_retention.py --agents 40 --pages 1500 --turns 60

A cluster with the demo model and one decode worker with a small pool of pages serves agents, each of which sends its
conversation again after every pause. Turns, lengths and pauses are those of `cluster.tools.workload.agents`, lengths by
`LENGTHS` and pauses by `--pause` as long. Each agent sends so many turns,
the same with and without retention, `--rounds` times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from openai import AsyncOpenAI

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.elastic.bench_deployment import Deployment  # noqa: E402
from slipstream.cluster.tools.workload.agents import ANSWER, AgentMix  # noqa: E402
from slipstream.cluster.tools.workload.arrival import Arrival  # noqa: E402

LENGTHS = 1 / 40
MOST_TOKENS = 2400
MOST_PAUSE_S = 30.0
WORDS = ("alpha", "beta", "gamma", "delta", "file", "line", "test", "error", "value", "list", "true", "none")
NAMES = ("read", "edit", "shell", "wait")


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool(name) for name in NAMES]


@dataclass
class Seen:
    ttft_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=32, help="at a time")
    parser.add_argument("--pages", type=int, default=1200)
    parser.add_argument("--turns", type=int, default=40, help="of each agent")
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print(f"{'':>9} {'round':>5} {'requests':>8} {'cached':>7} {'TTFT mean':>10} {'p50':>7} {'p90':>7} {'p99':>7} ms")
    for number in range(given.rounds):
        for name, enabled in (("LRU", False), ("retention", True)):
            seen, counted = run(given, enabled, number)
            cuts = quantiles(seen.ttft_s, n=100)
            share = seen.num_cached_tokens / seen.num_prompt_tokens
            times = (mean(seen.ttft_s), cuts[49], cuts[89], cuts[98])
            shown = " ".join(f"{1e3 * value:7.0f}" for value in times)
            print(
                f"{name:>9} {number:>5} {len(seen.ttft_s):>8} {share:7.4f}    {shown}  {json.dumps(counted)}",
                flush=True,
            )


def run(given: argparse.Namespace, enabled: bool, number: int) -> tuple[Seen, dict[str, float]]:
    settings = {
        "model": {"path": str(ROOT / "models" / "slipstream-demo")},
        "engine": {"num_pages": given.pages, "num_threads": 1},
        "router": {"http": {"port": 0}, "dispatch": {"retention": {"enabled": enabled}}},
        "prefill": {"replicas": 0},
        "decode": {"replicas": 1},
    }
    with Deployment("retention", settings, None) as cluster:
        assert cluster.state is not None
        base = cluster.state.url
        return asyncio.run(measured(base, given, number))


async def measured(base: str, given: argparse.Namespace, number: int) -> tuple[Seen, dict[str, float]]:
    mix = AgentMix(pause=given.pause, new_tokens=3000, shared_tokens=14_000, most_tokens=round(MOST_TOKENS / LENGTHS))
    seen = Seen()
    client = AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=120)
    async with client:
        lanes = [
            asyncio.create_task(lane(client, mix.arrivals(1000 * number + at), seen, given.turns))
            for at in range(given.agents)
        ]
        await asyncio.gather(*lanes)
        page = await client._client.get(f"{base}/metrics")
    kinds = ("retained_pages_used", "retained_pages_expired", "retained_pages_displaced")
    counted = {}
    for line in page.text.splitlines():
        for kind in kinds:
            if line.startswith("slipstream:worker_events_total") and f'event="{kind}"' in line:
                counted[kind.removeprefix("retained_pages_")] = float(line.split()[-1])
    return seen, counted


async def lane(client: AsyncOpenAI, sessions: Iterator[Arrival], seen: Seen, num_turns: int) -> None:
    """Sessions one after the other."""
    while num_turns > 0:
        num_turns -= await session(client, next(sessions), seen, num_turns)


async def session(client: AsyncOpenAI, turn: Arrival | None, seen: Seen, most_turns: int) -> int:
    """Returns how many turns it had."""
    assert turn is not None
    num_turns = 0
    rng = random.Random(turn.session)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text_of(random.Random(1), 14_000)},
        {"role": "user", "content": text_of(rng, turn.input_length - 14_000)},
    ]
    while turn is not None:
        calls = turn.tools or ANSWER
        choice: Any = {"type": "function", "function": {"name": calls[0]}} if calls else "none"
        began_s, ttft_s, call_id = time.monotonic(), 0.0, ""
        stream = await client.chat.completions.create(
            model="slipstream-demo",
            messages=messages,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            tool_choice=choice,
            max_tokens=24,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
        )
        said = ""
        async for chunk in stream:
            ttft_s = ttft_s or time.monotonic() - began_s
            if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                seen.num_prompt_tokens += chunk.usage.prompt_tokens
                seen.num_cached_tokens += chunk.usage.prompt_tokens_details.cached_tokens or 0
            for part in chunk.choices:
                said += part.delta.content or ""
                for call in part.delta.tool_calls or ():
                    call_id = call.id or call_id
        seen.ttft_s.append(ttft_s)
        num_turns += 1
        following = turn.then
        if following is None or num_turns >= most_turns:
            break
        new = text_of(rng, following.input_length - turn.input_length)
        if call_id:
            call = {"id": call_id, "type": "function", "function": {"name": calls[0], "arguments": "{}"}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": new},
            ]
        else:
            messages += [{"role": "assistant", "content": said or "Done."}, {"role": "user", "content": new}]
        await asyncio.sleep(min(following.at_s, MOST_PAUSE_S))
        turn = following
    return num_turns


def text_of(rng: random.Random, num_tokens: int) -> str:
    """About so many tokens, scaled."""
    return " ".join(rng.choices(WORDS, k=max(round(num_tokens * LENGTHS), 1)))


if __name__ == "__main__":
    main()
