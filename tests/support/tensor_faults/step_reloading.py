"""The model of an ensemble's first step is loaded anew, or unloaded for a while, while clients ask the ensemble."""

from __future__ import annotations

import asyncio
import json
import random
import time

from tests.support.tensor_faults.faulted_graphs import PLUS_JSON
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.reloading import KILLED
from tests.support.tensor_faults.tensor_account import TensorAccount
from tests.support.tensor_faults.tensor_call import Refused

MODELS = ("plus", "three")  # in the order in which they are loaded


class StepReloading:
    """`has_been_away(since_s)`: whether an ensemble that was asked then may have found no model for its first step."""

    def __init__(self, http: tuple[str, int], rng: random.Random, account: TensorAccount, pause_s: float = 1.0) -> None:
        self._operator = HttpTensorClient(*http)
        self._rng, self._account, self._pause_s = rng, account, pause_s
        self._began_s = time.monotonic()
        self._is_to_end = False
        self._back_s = 0.0  # when the latest absence was over
        self._is_away = False
        self.num_loads = 0
        self._task = asyncio.create_task(self._operate())

    def has_been_away(self, since_s: float) -> bool:
        return self._is_away or self._back_s >= since_s

    async def stop(self) -> None:
        self._is_to_end = True
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        if result is not None:
            self._account.wrong.append(f"a client that loads a step ended with {result!r}")
        await self._operator.close()

    async def _operate(self) -> None:
        while not self._is_to_end:
            self.num_loads += 1
            if self._rng.random() < 0.25:
                self._is_away = True
                await self._do("plus", "unload", {})
                for model in MODELS:
                    await self._do(model, "load", {})
                self._is_away, self._back_s = False, time.monotonic()
            else:
                config = PLUS_JSON | {"parameters": {"load": {"string_value": str(self.num_loads)}}}
                await self._do("plus", "load", {"parameters": {"config": json.dumps(config)}})
            await asyncio.sleep(self._rng.uniform(0.2, 2.0) * self._pause_s)

    async def _do(self, model: str, what: str, body: dict[str, object]) -> None:
        """Again until it is done: whether a router has done it that was killed, nobody knows."""
        for _ in range(10):
            begun_s = time.monotonic()
            at_s, kind = begun_s - self._began_s, f"http {what} {model}"
            try:
                async with asyncio.timeout(75):
                    path = f"/v2/repository/models/{model}/{what}"
                    status, _, answer = await self._operator.post(path, json.dumps(body).encode())
            except (OSError, TimeoutError) as error:
                self._account.fail(kind, error, is_allowed=False, at_s=at_s)
                continue
            if status == 200:
                return self._account.end(kind, "answered", time.monotonic() - begun_s, at_s)
            error = Refused(str(status), answer.decode())
            is_allowed = status == 503 or KILLED in error.message
            self._account.fail(kind, error, is_allowed=is_allowed, at_s=at_s)
            await asyncio.sleep(0.2)
        raise RuntimeError(f"{what} of {model} does not succeed")
