"""Requests to a real cluster at the times of a workload, and what their client saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp
import orjson

from slipstream.cluster.tools.workload.arrival import Arrival

FIRST_ID, NUM_IDS = 300, 1000  # of the tokens that prompts are made of: ordinary ones of any vocabulary
TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: seconds since the workload began, and its tokens."""

    arrived_s: float
    first_s: float
    ended_s: float
    num_output: int
    token_s: tuple[float, ...] = ()  # when each came, where somebody looked
    request_id: str = ""

    def gaps_between(self, begin_s: float, end_s: float) -> list[float]:
        """Seconds between tokens that came one after another meanwhile."""
        return [then - now for now, then in pairwise(self.token_s) if begin_s <= now and then <= end_s]

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster's `/v1/completions`."""

    base_url: str
    model: str

    def body(self, arrival: Arrival, rng: random.Random) -> bytes:
        """With a prompt of its own. Made before the time counts: it is the client's work, not the cluster's."""
        return orjson.dumps(
            {
                "model": self.model,
                "prompt": [FIRST_ID + rng.randrange(NUM_IDS) for _ in range(arrival.input_length)],
                "max_tokens": arrival.output_length,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        )


async def _ask(session: aiohttp.ClientSession, target: Target, body: bytes, num_output: int, began_s: float) -> Seen:
    sent_s = time.perf_counter()
    token_s: list[float] = []
    first_line = b""
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{target.base_url}/v1/completions", data=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                token_s.append(time.perf_counter() - began_s)
                first_line = first_line or line
    if not token_s:
        raise RuntimeError("an answer ended without a token")
    request_id = orjson.loads(first_line.removeprefix(b"data: "))["id"]
    return Seen(sent_s - began_s, token_s[0], token_s[-1], num_output, tuple(token_s), request_id)


async def at_their_times(target: Target, arrivals: Sequence[Arrival], seed: int) -> list[Seen]:
    """Each when it comes, whatever has become of the others."""
    rng = random.Random(seed)
    bodies = [target.body(arrival, rng) for arrival in arrivals]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT) as session:
        began_s = time.perf_counter() + 0.1

        async def one(arrival: Arrival, body: bytes) -> Seen:
            await asyncio.sleep(max(began_s + arrival.at_s - time.perf_counter(), 0.0))
            return await _ask(session, target, body, arrival.output_length, began_s)

        return list(await asyncio.gather(*map(one, arrivals, bodies)))


async def in_turn(
    target: Target, arrivals: Sequence[Arrival], seed: int, concurrency: int, pause_s: float = 0.0
) -> list[Seen]:
    """So many at a time, in their order, each `pause_s` after another has ended. Their times of arrival do not
    count."""
    rng = random.Random(seed)
    waiting = iter([(target.body(arrival, rng), arrival.output_length) for arrival in arrivals])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT) as session:
        began_s = time.perf_counter()

        async def client() -> list[Seen]:
            seen = []
            for body, num_output in waiting:
                await asyncio.sleep(pause_s)
                seen.append(await _ask(session, target, body, num_output, began_s))
            return seen

        seen = await asyncio.gather(*[client() for _ in range(concurrency)])
    return sorted((one for some in seen for one in some), key=lambda one: one.arrived_s)
