"""Time to first token of clients while nothing else runs, while a batch runs behind them, and while the same lines come
as requests of the lowest priority. Mock workers, real processes:

    .venv/bin/python scripts/bench/router/bench_batch.py --seconds 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

MODEL_DIR = Path(__file__).parents[3] / "models" / "slipstream-demo"
WORKER = ("max_slots=16", "step_s=0.02", "prefill_token_s=0.0002", "vocab_size=300", "max_queued_tokens=4096")
NUM_TOKENS = 32
LINE_TOKENS = 64
LINE_PROMPT = 512
NUM_LINES = 5000


def line(number: int) -> dict[str, Any]:
    """A body whose prompt no prefix cache has."""
    numbers = random.Random(number)
    prompt = [numbers.randrange(3, 300) for _ in range(LINE_PROMPT)]
    return {"model": "m", "prompt": prompt, "max_tokens": LINE_TOKENS, "ignore_eos": True}


class Clients:
    """Requests at random times, `rate` per second."""

    def __init__(self, client: httpx.AsyncClient, rate: float) -> None:
        self._client = client
        self._rate = rate
        self.ttfts_s: list[float] = []
        self._random = random.Random(7)

    async def run(self, seconds: float) -> None:
        self.ttfts_s = []
        end_s, tasks = time.monotonic() + seconds, []
        while time.monotonic() < end_s:
            tasks.append(asyncio.create_task(self._one()))
            await asyncio.sleep(self._random.expovariate(self._rate))
        await asyncio.gather(*tasks)

    async def _one(self) -> None:
        prompt = [self._random.randrange(3, 300) for _ in range(64)]
        body = {"model": "m", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
        begin_s = time.monotonic()
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.status_code
            first = True
            async for _ in answer.aiter_bytes():
                if first:
                    self.ttfts_s.append(time.monotonic() - begin_s)
                first = False

    def line(self, name: str, lines_s: float) -> str:
        found = sorted(self.ttfts_s)
        p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
        times = f"TTFT p50 {p50 * 1e3:6.0f} ms  p99 {p99 * 1e3:6.0f} ms"
        return f"{name:24} {len(found):5} requests  {times}  {lines_s:6.1f} lines/s"


async def measure(url: str, seconds: float, rate: float) -> None:
    limits = httpx.Limits(max_connections=1000)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.1)
        clients = Clients(client, rate)
        await clients.run(3)
        await clients.run(seconds)
        print(clients.line("alone", 0.0))
        text = "\n".join(
            json.dumps({"custom_id": f"n{n}", "method": "POST", "url": "/v1/completions", "body": line(n)})
            for n in range(NUM_LINES)
        )
        file = (await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in", text)})).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
        batch = (await client.post("/v1/batches", json=body)).json()
        await asyncio.sleep(5)
        before = (await client.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"]
        begin_s = time.monotonic()
        await clients.run(seconds)
        after = (await client.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"]
        print(clients.line("with a batch", (after - before) / (time.monotonic() - begin_s)))
        await client.post(f"/v1/batches/{batch['id']}/cancel", content=b"")
        await asyncio.sleep(3)
        num_done = 0

        async def flood(number: int) -> None:
            nonlocal num_done
            while True:
                number += 64
                await client.post("/v1/completions", json={**line(number), "priority": 8})
                num_done += 1

        tasks = [asyncio.create_task(flood(10_000 + number)) for number in range(64)]
        await asyncio.sleep(5)
        num_done, begin_s = 0, time.monotonic()
        await clients.run(seconds)
        print(clients.line("with 64 of priority 8", num_done / (time.monotonic() - begin_s)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=6.0, help="requests of clients per second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "model": "m",
            "model_dir": str(MODEL_DIR),
            "token": "secret",
            "has_prefill_pool": True,
            "router": {"http": {"port": 0}, "store": {"directory": f"{folder}/store"}},
        }
        path = Path(folder) / "router.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "slipstream.router.main", "--config", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as router:
            assert router.stdout is not None
            listening = json.loads(router.stdout.readline())
            settings = [part for value in WORKER for part in ("--set", value)]
            program = [sys.executable, "-m", "slipstream.workers.mock.main", "--router", listening["workers"]]
            workers = subprocess.Popen(
                [*program, "--model", "m", *settings],
                env={**os.environ, "SLIPSTREAM_WORKER_TOKEN": "secret"},
            )
            try:
                asyncio.run(measure(listening["http"], options.seconds, options.rate))
            finally:
                for process in (router, workers):
                    process.terminate()
                    process.wait()


if __name__ == "__main__":
    main()
