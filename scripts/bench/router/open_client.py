"""An open-loop streaming client: requests come at a rate, however long the answers take.

    open_client.py '{"url": "http://127.0.0.1:8000", ...}'         the fields of `Arrivals`

Gaps between requests are exponential. What is known of the requests that were due in the measured window is printed as
one line of JSON, the fields of `Arrived`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import uvloop
from load_client import Load, Prompts, percentiles

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.client_connection import ClientConnection

LAST_ANSWERS_S = 3.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`load` says what a request is, and for how long they come; its `concurrency` is not used."""

    load: Load
    per_s: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """Times in milliseconds, as percentiles 0, 1, ... 100. A request is late if this client sent it so much later than
    it was due."""

    num_good: int
    num_refused: int  # answered with an error
    num_open: int  # without an answer at the end
    ttft_ms: list[float]
    late_ms: list[float]


class OpenLoop:
    """The connections that are free, and the requests that are under way."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._prompts = Prompts(arrivals.load)
        self._random = random.Random(arrivals.load.seed)
        self._free: list[ClientConnection] = []
        self._answers: list[tuple[float, ClientAnswer]] = []  # when it was due
        self._num_open = 0

    async def run(self) -> Arrived:
        load = self._arrivals.load
        begin_s = time.perf_counter()
        end_s, due_s = begin_s + load.warm_up_s + load.measure_s, begin_s
        asking = set[asyncio.Task[None]]()
        while due_s < end_s:
            await asyncio.sleep(due_s - time.perf_counter())
            task = asyncio.create_task(self._ask(due_s))
            asking.add(task)
            task.add_done_callback(asking.discard)
            due_s += self._random.expovariate(self._arrivals.per_s)
        await asyncio.sleep(0)
        if asking:
            _, late = await asyncio.wait(asking, timeout=LAST_ANSWERS_S)
            for task in late:
                task.cancel()
        measured = [(due_s, answer) for due_s, answer in self._answers if due_s >= begin_s + load.warm_up_s]
        good = [answer for _, answer in measured if answer.is_good and answer.ttft_s is not None]
        return Arrived(
            len(good),
            len(measured) - len(good),
            self._num_open,
            percentiles([answer.ttft_s * 1e3 for answer in good if answer.ttft_s is not None]),
            percentiles([(answer.begun_s - due_s) * 1e3 for due_s, answer in measured]),
        )

    async def _ask(self, due_s: float) -> None:
        self._num_open += 1
        connection = self._free.pop() if self._free else None
        if connection is None or connection.is_closed:
            at = urlsplit(self._arrivals.load.url)
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(ClientConnection, at.hostname, at.port)
        answer = await connection.ask(self._prompts.next())
        self._num_open -= 1
        self._answers.append((due_s, answer))
        self._free.append(connection)


def main() -> None:
    given = json.loads(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read())
    arrivals = Arrivals(Load(**given["load"]), given["per_s"])
    print(json.dumps(asdict(uvloop.run(OpenLoop(arrivals).run()))))


if __name__ == "__main__":
    main()
