"""Agents that each hold one long conversation, as a client in a process of its own.

    agents_client.py '{"url": "http://127.0.0.1:8000", ...}'         the fields of `Agents`

The sessions advance in step: all have their first turn, at a rate, then all have their second. So the CPU time of a
step, divided by the sessions, is that of a turn of this length. Each step is printed as one line of JSON, the fields of
`TurnOutcome`, when its last answer has come.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvloop
from agent_sessions import Session, Setting, Sizes
from load_client import busy_s, percentiles

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.client_connection import ClientConnection

TURN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Agents:
    """`rate` is in turns a second, of all sessions together. `pids` are the processes whose CPU time and memory are
    measured, by role."""

    url: str
    model: str
    words: list[str]
    num_sessions: int
    num_turns: int
    max_tokens: int
    chars_per_token: float
    osl: int
    rate: float
    seed: int
    pids: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One step of all sessions. `prompt_tokens` is the median. Times are in milliseconds, as percentiles 0, 1, ... 100;
    memory is the resident set at the end."""

    turn: int
    num_good: int
    prompt_tokens: int
    cached_tokens: int
    body_bytes: int
    seconds: float
    ttft_ms: list[float]
    cpu_s: dict[str, float]
    memory_mib: dict[str, float]
    others_cores: float
    errors: dict[str, int]


class AgentClient:
    """A session with its connection. The JSON of a message is made once."""

    def __init__(self, load: Agents, setting: Setting, sizes: Sizes, seed: int) -> None:
        self._url = urlsplit(load.url)
        self._session = Session(setting, load.words, sizes, seed)
        self._parts = list(map(orjson.dumps, self._session.new))
        self._connection: ClientConnection | None = None
        rest = {
            "tools": setting.tools,
            "model": load.model,
            "max_tokens": load.osl,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        self._end = b"]," + orjson.dumps(rest)[1:]
        self.body_bytes = 0

    async def turn(self) -> ClientAnswer:
        body = b'{"messages":[' + b",".join(self._parts) + self._end
        self.body_bytes = len(body)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._url.netloc}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        if self._connection is None or self._connection.is_closed:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(ClientConnection, self._url.hostname, self._url.port)
        return await asyncio.wait_for(self._connection.ask(head.encode() + body), TURN_TIMEOUT_S)

    def grow(self) -> None:
        self._session.grow()
        self._parts += map(orjson.dumps, self._session.new)


async def run(load: Agents) -> None:
    draw = random.Random(load.seed)
    sizes = Sizes(load.num_turns, load.max_tokens, load.chars_per_token)
    setting = Setting.of(load.words, sizes)
    agents = [AgentClient(load, setting, sizes, load.seed + 1 + number) for number in range(load.num_sessions)]
    for turn in range(load.num_turns):
        before, busy_before, begun_s = cpu_of(load), busy_s(), time.perf_counter()
        asked: list[asyncio.Task[ClientAnswer]] = []
        due_s = begun_s
        for agent in draw.sample(agents, len(agents)):
            await asyncio.sleep(due_s - time.perf_counter())
            asked.append(asyncio.create_task(agent.turn()))
            due_s += draw.expovariate(load.rate)
        answers = await asyncio.gather(*asked)
        after, seconds = cpu_of(load), time.perf_counter() - begun_s
        cpu_s = {role: after[role] - before[role] for role in after}
        good = [answer for answer in answers if answer.is_good]
        outcome = TurnOutcome(
            turn + 1,
            len(good),
            sorted(answer.num_prompt_tokens or 0 for answer in answers)[len(answers) // 2],
            sorted(answer.num_cached_tokens or 0 for answer in answers)[len(answers) // 2],
            max(agent.body_bytes for agent in agents),
            seconds,
            percentiles([answer.ttft_s * 1e3 for answer in good if answer.ttft_s is not None]),
            cpu_s,
            {role: sum(map(memory_mib, pids)) for role, pids in load.pids.items()},
            (busy_s() - busy_before - sum(cpu_s.values())) / seconds,
            dict(Counter(answer.kind for answer in answers if not answer.is_good)),
        )
        print(json.dumps(asdict(outcome)), flush=True)
        for agent in agents:
            agent.grow()


def cpu_of(load: Agents) -> dict[str, float]:
    return {role: sum(map(cpu_s, pids)) for role, pids in load.pids.items()} | {"client": time.process_time()}


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, finer than the clock ticks of /proc/PID/stat."""
    nanoseconds = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return nanoseconds / 1e9


def memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main() -> None:
    uvloop.run(run(Agents(**json.loads(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()))))


if __name__ == "__main__":
    main()
