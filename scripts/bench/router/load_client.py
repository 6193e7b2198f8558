"""A closed-loop streaming client in a process of its own, cheap enough to share two cores with what it measures.

    load_client.py '{"url": "http://127.0.0.1:8000", ...}'         the fields of `Load`

Each of `concurrency` connections sends its next request when the last answer has ended. What came within the measured
window is printed as one line of JSON, the fields of `Outcome`. The connections are those of `slipstream bench`: a read
with text in it is a moment at which tokens came. A good answer has the number of tokens asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.client_connection import ClientConnection

NUM_TAILS = 64  # prompts differ in their first words; what follows is taken from so many texts
NUM_UNIQUE_WORDS = 6
LAST_ANSWERS_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """`words` are single tokens each, wherever they stand; a prompt of `num_words` of them has `isl` tokens. `pids` are
    the processes whose CPU time is measured, by role."""

    url: str
    model: str
    words: list[str]
    num_words: int
    osl: int
    concurrency: int
    warm_up_s: float
    measure_s: float
    seed: int
    quick_ack: bool = False
    pids: dict[str, list[int]] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)  # of which each request gets one, instead of `model`


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in milliseconds, as sorted samples thinned to percentiles 0, 1, ... 100; CPU time in seconds by role."""

    seconds: float
    num_answers: int
    num_errors: int
    num_tokens: int
    ttft_ms: list[float]
    itl_ms: list[float]
    latency_ms: list[float]
    cpu_s: dict[str, float]
    others_cores: float  # CPU time of programs that have no part in it
    errors: dict[str, int]


class Prompts:
    """Requests as bytes, ready to be sent, no two of them alike."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._random = random.Random(load.seed)
        num_tail = load.num_words - NUM_UNIQUE_WORDS
        self._tails = [" ".join(self._random.choices(load.words, k=num_tail)) for _ in range(NUM_TAILS)]
        self._host = urlsplit(load.url).netloc

    def next(self) -> bytes:
        words = self._random.choices(self._load.words, k=NUM_UNIQUE_WORDS)
        body = json.dumps(
            {
                "model": self._random.choice(self._load.models) if self._load.models else self._load.model,
                "messages": [{"role": "user", "content": f"{' '.join(words)} {self._random.choice(self._tails)}"}],
                "max_tokens": self._load.osl,
                "stream": True,
                "ignore_eos": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Users:
    """The closed loop. `answers` has every request that has ended."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._prompts = Prompts(load)
        self._is_over = False
        self.answers: list[ClientAnswer] = []

    async def run(self) -> Outcome:
        load = self._load
        users = [asyncio.create_task(self._user()) for _ in range(load.concurrency)]
        await asyncio.sleep(load.warm_up_s)
        begin_s, before, busy_before = time.perf_counter(), self._cpu_s(), busy_s()
        await asyncio.sleep(load.measure_s)
        end_s, after, busy_after = time.perf_counter(), self._cpu_s(), busy_s()
        self._is_over = True
        await asyncio.wait(users, timeout=LAST_ANSWERS_S)
        cpu_s = {role: after[role] - before[role] for role in after}
        others_s = busy_after - busy_before - sum(cpu_s.values())
        return self._outcome(begin_s, end_s, cpu_s, others_s)

    async def _user(self) -> None:
        host, port = urlsplit(self._load.url).hostname, urlsplit(self._load.url).port
        loop = asyncio.get_running_loop()
        connection: ClientConnection | None = None
        while not self._is_over:
            if connection is None or connection.is_closed:
                _, connection = await loop.create_connection(lambda: ClientConnection(self._load.quick_ack), host, port)
            answer = await connection.ask(self._prompts.next())
            if answer.num_tokens != self._load.osl:
                answer.fail(f"{answer.num_tokens} tokens")
            self.answers.append(answer)
        if connection is not None:
            connection.close()

    def _cpu_s(self) -> dict[str, float]:
        cpu_s = {role: sum(map(process_cpu_s, pids)) for role, pids in self._load.pids.items()}
        return cpu_s | {"client": time.process_time()}

    def _outcome(self, begin_s: float, end_s: float, cpu_s: dict[str, float], others_s: float) -> Outcome:
        ended = [answer for answer in self.answers if begin_s <= answer.ended_s <= end_s]
        good = [answer for answer in ended if answer.is_good]
        errors = Counter(answer.kind for answer in ended if not answer.is_good)
        return Outcome(
            seconds=end_s - begin_s,
            num_answers=len(good),
            num_errors=len(ended) - len(good),
            num_tokens=sum(answer.num_tokens for answer in good),
            ttft_ms=percentiles([(answer.first_s - answer.begun_s) * 1e3 for answer in good if answer.first_s]),
            itl_ms=percentiles([gap_s * 1e3 for answer in good for gap_s, _ in answer.gaps]),
            latency_ms=percentiles([(answer.ended_s - answer.begun_s) * 1e3 for answer in good]),
            cpu_s=cpu_s,
            others_cores=others_s / (end_s - begin_s),
            errors=dict(errors),
        )


def percentiles(samples: list[float]) -> list[float]:
    """0 to 100, empty if there are no samples."""
    ordered = sorted(samples)
    return [ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in range(101)] if ordered else []


def process_cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """CPU time of the whole machine so far: user, nice, system, interrupts."""
    with open("/proc/stat") as stat:
        fields = [int(value) for value in stat.readline().split()[1:8]]
    return sum(fields[index] for index in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    load = Load(**json.loads(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()))
    print(json.dumps(asdict(uvloop.run(Users(load).run()))))


if __name__ == "__main__":
    main()
