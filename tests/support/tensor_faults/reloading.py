"""One model is loaded with other configurations, and unloaded, again and again while clients ask it."""

from __future__ import annotations

import asyncio
import json
import random
import time

import numpy as np

from tests.support.tensor_faults.faulted_models import CHANGING_JSON
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.tensor_account import TensorAccount
from tests.support.tensor_faults.tensor_call import Refused, TensorCall


class Reloading:
    """A client of the repository extension, and one that asks the model which it changes: every answer is of the load
    before or of one under way."""

    def __init__(self, http: tuple[str, int], rng: random.Random, account: TensorAccount, pause_s: float = 0.5) -> None:
        self._operator, self._client = HttpTensorClient(*http), HttpTensorClient(*http)
        self._rng, self._account, self._pause_s = rng, account, pause_s
        self._began_s = time.monotonic()
        self._allowed: set[int | None] = {0}  # None: it is not loaded
        self._is_to_end = False
        self.num_loads = 0
        self.history: list[str] = []  # of operations: when it began and ended, what was wanted
        self._tasks = [asyncio.create_task(self._operate()), asyncio.create_task(self._ask())]

    async def stop(self) -> None:
        """The model is loaded at the end."""
        self._is_to_end = True
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if result is not None:
                self._account.wrong.append(f"a client that loads ended with {result!r}")
        await self._do(0)
        await self._operator.close()
        await self._client.close()

    async def _operate(self) -> None:
        while not self._is_to_end:
            self.num_loads += 1
            wanted = None if self._rng.random() < 0.2 else self.num_loads
            self._allowed.add(wanted)
            self.history.append(f"{wanted} at {time.monotonic() - self._began_s:.2f} s")
            await self._do(wanted)
            self._allowed = {wanted}
            self.history[-1] += f" done at {time.monotonic() - self._began_s:.2f} s"
            await asyncio.sleep(self._rng.uniform(0.2, 2.0) * self._pause_s)

    async def _do(self, value: int | None) -> None:
        """Again until it is done: whether a router has done it that was killed, nobody knows."""
        path, body = load_call(value)
        for _ in range(10):
            begun_s = time.monotonic()
            try:
                async with asyncio.timeout(75):
                    status, _, answer = await self._operator.post(path, body)
            except (OSError, TimeoutError) as error:
                self._account.fail("http repository", error, is_allowed=False, at_s=begun_s - self._began_s)
                continue
            if status == 200:
                took_s = time.monotonic() - begun_s
                self._account.end("http repository", "answered", took_s, begun_s - self._began_s)
                return
            error = Refused(str(status), answer.decode())
            self._account.fail("http repository", error, is_allowed=status == 503, at_s=begun_s - self._began_s)
        raise RuntimeError(f"{path} does not succeed")

    async def _ask(self) -> None:
        call = TensorCall("changing", {"ANY": np.zeros(1, np.int32)})
        while not self._is_to_end:
            allowed, begun_s = set(self._allowed), time.monotonic()
            try:
                async with asyncio.timeout(75):
                    got: int | None = int((await self._client.infer(call))["VALUE"][0])
            except Refused as error:
                got = None
                if None not in allowed | self._allowed:
                    self._account.fail("http changing", error, is_allowed=False, at_s=begun_s - self._began_s)
                    continue
            except (OSError, TimeoutError) as error:
                self._account.fail("http changing", error, is_allowed=False, at_s=begun_s - self._began_s)
                continue
            if got not in allowed | self._allowed:
                at_s = begun_s - self._began_s
                self._account.wrong.append(f"at {at_s:.1f} s changing says {got}, not of {allowed | self._allowed}")
                self._account.wrong.append(f"  after {', '.join(self.history[-4:])}")
            self._account.end("http changing", "answered" if got is not None else "unloaded")
            await asyncio.sleep(0.01)


def load_call(value: int | None) -> tuple[str, bytes]:
    """Path and body; None unloads."""
    if value is None:
        return "/v2/repository/models/changing/unload", b""
    config = CHANGING_JSON | {"parameters": {"value": {"string_value": str(value)}}}
    return "/v2/repository/models/changing/load", json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
