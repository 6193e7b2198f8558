"""Clients of tensor models that go on asking, each by its own draws, and check every answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np

from tests.support.tensor_faults.faulted_models import SEQUENCE_MODELS, scaled
from tests.support.tensor_faults.graph_load import GraphAsks, Undisturbed
from tests.support.tensor_faults.grpc_client import GrpcTensorClient
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.tensor_account import TensorAccount
from tests.support.tensor_faults.tensor_call import Refused, TensorCall, TensorClient, WrongAnswerError, check

KIB = 1024
SIZES = {"64 B": 64, "64 KiB": 64 * KIB, "65 KiB": 65 * KIB, "4 MiB": 4 * KIB * KIB}
KINDS = (
    *("64 B",) * 6,
    *("64 KiB", "65 KiB") * 2,
    "4 MiB",
    *("batched",) * 6,
    *("calls",) * 3,
    *("ensemble",) * 3,
    *("sequence",) * 4,
    *("stream",) * 3,
    *("leave",) * 3,
    "leave stream",
)
OF_LOST_INSTANCE = "is not healthy"
OF_LOST_SEQUENCE = (OF_LOST_INSTANCE, "is lost: instance", "START", "router_restarted", "The router was killed")


class TensorLoad:
    """`num_clients` over HTTP and as many over gRPC, until `stop`. `deadline_s`: who waits longer hangs. Sequences of
    which every request was answered are in `finished`: (model, correlation id) -> how many requests. `may_fail(s)`:
    whether an ensemble may have lost a model since."""

    def __init__(
        self,
        http: tuple[str, int],
        grpc: str,
        rng: random.Random,
        num_clients: int,
        deadline_s: float,
        kinds: Sequence[str] = KINDS,
        protocols: Sequence[str] = ("http", "grpc"),
        undisturbed: Undisturbed | None = None,
    ) -> None:
        self.account = TensorAccount()
        self.finished: dict[tuple[str, int], int] = {}
        self._http, self._grpc = http, grpc
        self._deadline_s = deadline_s
        self._kinds = kinds
        self._undisturbed = undisturbed or Undisturbed()
        self.served_by_version: dict[int, int] = {}
        self.may_fail: Callable[[float], bool] = lambda began_s: False
        self._began_s = time.monotonic()
        self._is_to_end = False
        self._last_sequence = 0
        self._tasks = [
            asyncio.create_task(self._ask_over(protocol, random.Random(rng.random())))
            for protocol in tuple(protocols) * num_clients
        ]

    async def stop(self) -> None:
        """Lets the requests that run end."""
        self._is_to_end = True
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if result is not None:
                self.account.wrong.append(f"a client ended with {result!r}")

    async def _ask_over(self, protocol: str, rng: random.Random) -> None:
        client: TensorClient = HttpTensorClient(*self._http) if protocol == "http" else GrpcTensorClient(self._grpc)
        asks: dict[str, Callable[[], Awaitable[None]]] = {
            "batched": lambda: self._sum(client, rng),
            "calls": lambda: self._call(client, rng, "caller"),
            "ensemble": lambda: self._call(client, rng, "chain"),
            "sequence": lambda: self._sequence(client, rng),
            "stream": lambda: self._stream(client, rng, 99),
            "leave stream": lambda: self._stream(client, rng, rng.randint(1, 3)),
            "leave": lambda: client.leave(scale_call(rng.choice(list(SIZES.values()))), rng.choice((0.0, 0.001, 0.01))),
        }
        asks |= GraphAsks(client, rng, self._undisturbed, self.served_by_version).kinds
        for kind, num_bytes in SIZES.items():
            asks[kind] = partial(self._scale, client, num_bytes)
        while not self._is_to_end:
            kind = rng.choice(self._kinds)
            await self._account_for(f"{protocol} {kind}", asks[kind])
        await client.close()

    async def _account_for(self, kind: str, ask: Callable[[], Awaitable[None]]) -> None:
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_s):
                await ask()
        except (Refused, OSError, WrongAnswerError) as error:
            allowed = is_allowed(kind, error) or ("three" in kind and self.may_fail(begun_s))
            self.account.fail(kind, error, is_allowed=allowed, at_s=begun_s - self._began_s)
            if kind.startswith("grpc"):
                await asyncio.sleep(0.05)
        except TimeoutError:
            self.account.wrong.append(f"{kind} hung, begun at {begun_s - self._began_s:.1f} s")
        else:
            self.account.end(kind, "answered", time.monotonic() - begun_s, begun_s - self._began_s)

    async def _scale(self, client: TensorClient, num_bytes: int) -> None:
        call = scale_call(num_bytes)
        check((await client.infer(call))["SCALED"], scaled(call.inputs["VALUES"]))

    async def _sum(self, client: TensorClient, rng: random.Random) -> None:
        rows = np.array([[rng.randint(0, 99)] * 16 for _ in range(rng.randint(1, 5))], np.float32)
        check((await client.infer(TensorCall("sums", {"ROWS": rows})))["SUM"], rows.sum(axis=1, keepdims=True))

    async def _call(self, client: TensorClient, rng: random.Random, model: str) -> None:
        """A model that calls another one twice, or an ensemble of it."""
        values = scale_call(rng.choice((64, 200 * KIB))).inputs["VALUES"]
        check((await client.infer(TensorCall(model, {"VALUES": values})))["SCALED"], scaled(scaled(values)))

    async def _sequence(self, client: TensorClient, rng: random.Random) -> None:
        self._last_sequence += 1
        model, number, count = rng.choice(SEQUENCE_MODELS), self._last_sequence, rng.randint(2, 8)
        total = 0
        for step in range(count):
            value = rng.randint(1, 1000)
            total += value
            inputs = {"VALUE": np.array([[value]], np.int64), "STEP": np.array([[step]], np.int64)}
            flags = {"sequence_id": number, "sequence_start": step == 0, "sequence_end": step == count - 1}
            check((await client.infer(TensorCall(model, inputs, flags)))["TOTAL"], np.array([[total]], np.int64))
        self.finished[model, number] = count

    async def _stream(self, client: TensorClient, rng: random.Random, most: int) -> None:
        first, count = rng.randint(0, 1000), rng.randint(1, 8)
        call = TensorCall("count", {"RANGE": np.array([first, count, rng.choice((0, 5, 30))], np.int32)})
        got: list[object] = []
        if isinstance(client, GrpcTensorClient):
            async for outputs in client.stream(call, most):
                got.append(int(outputs["VALUE"][0]))
        elif isinstance(client, HttpTensorClient):
            fields: dict[str, object] = {"RANGE": call.inputs["RANGE"].tolist()}
            async for event in client.stream("count", fields, most):
                got.append(event["VALUE"])
        if got != list(range(first, first + min(count, most))):
            raise WrongAnswerError(f"{got} instead of {count} from {first} on")


def is_allowed(kind: str, error: Exception) -> bool:
    """Without state nothing may fail but what the loss of the router does to gRPC, whose connections end with it."""
    text = str(error)
    if kind.startswith("grpc") and isinstance(error, Refused) and error.code == "UNAVAILABLE":
        return True
    if kind == "http 4 MiB":  # of whose answer a part had left when the router died
        return isinstance(error, ConnectionError) and "of a body" in str(error)
    if "sequence" in kind:
        return isinstance(error, Refused) and any(what in text for what in OF_LOST_SEQUENCE)
    if "stream" in kind:  # of which a part had left
        return isinstance(error, ConnectionError) or (isinstance(error, Refused) and OF_LOST_INSTANCE in text)
    return "leave" in kind and isinstance(error, ConnectionError)


def scale_call(num_bytes: int) -> TensorCall:
    return TensorCall("scale", {"VALUES": np.arange(num_bytes // 4, dtype=np.float32)})
