"""Requests with tensors to a server within this process: `slipstream.Server`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.cluster.in_process.interface.errors import TritonError
from slipstream.cluster.in_process.interface.kinds import DataType, RequestFlag
from slipstream.cluster.in_process.requests.infer_request import ANY_VERSION
from slipstream.cluster.in_process.requests.response_iterators import AsyncResponseIterator
from slipstream.cluster.in_process.server import Server
from slipstream.cluster.in_process.tensors.memory_buffer import MemoryBuffer
from slipstream.cluster.in_process.tensors.tensor import Tensor
from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.tensors.clients.http_client import MAX_KEPT
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferTurn, SequencePlace


class InProcessInferClient:
    """InferClient of a server that has been started. It does not stop it."""

    def __init__(self, server: Server, model: str, version: str, timeout_s: float) -> None:
        self._server = server
        self._model = server.model(model, int(version) if version else ANY_VERSION)
        self._timeout_s = timeout_s
        self._tensors: dict[int, dict[str, Tensor]] = {}  # by the identity of a turn's inputs, which their source keeps

    async def config(self) -> dict[str, Any]:
        try:
            return self._model.config()
        except TritonError as error:
            raise BenchError(str(error)) from None

    async def reload(self, config_json: str) -> None:
        """Loads the model with another configuration. Raises BenchError."""
        try:
            await asyncio.to_thread(self._server.load, self._model.name, {"config": config_json})
        except TritonError as error:
            raise BenchError(str(error)) from None

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._server.model(model).statistics()["model_stats"]
        return found

    async def register(self, region: str, key: str, num_bytes: int) -> None:
        raise BenchError("--shared-memory: tensors within one process need none")

    async def unregister(self, region: str) -> None:
        raise BenchError("--shared-memory: tensors within one process need none")

    async def ask(self, turn: InferTurn, before: Sequence[tuple[InferTurn, str]], keep_text: bool) -> ClientAnswer:
        request = self._model.create_request(inputs=self._inputs(turn), **sequence_fields(turn.sequence))
        answer = ClientAnswer(time.perf_counter(), model=self._model.name)
        responses: AsyncResponseIterator | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                responses = self._model.async_infer(request)
                async for response in responses:
                    if response.outputs:
                        note_response(answer)
        except TritonError as error:
            answer.fail(type(error).__name__, str(error))
        except (TimeoutError, asyncio.CancelledError) as error:
            if responses is not None:
                responses.cancel()
            if isinstance(error, asyncio.CancelledError):
                raise
            answer.fail("timeout", f"no whole answer within {self._timeout_s:g} s")
        answer.ended_s = time.perf_counter()
        return answer

    async def close(self) -> None:
        self._tensors.clear()

    def _inputs(self, turn: InferTurn) -> dict[str, Tensor]:
        known = self._tensors.get(id(turn.inputs))
        if known is not None:
            return known
        made = {
            one.name: Tensor(
                DataType[one.datatype], list(one.shape), MemoryBuffer.of_array(np.frombuffer(one.data, np.uint8).copy())
            )
            for one in turn.inputs
        }
        if len(self._tensors) < MAX_KEPT:
            self._tensors[id(turn.inputs)] = made
        return made


def note_response(answer: ClientAnswer) -> None:
    now_s = time.perf_counter()
    if answer.first_s:
        answer.gaps.append((now_s - answer.latest_s, 1))
    answer.first_s, answer.latest_s = answer.first_s or now_s, now_s
    answer.num_chunks += 1


def sequence_fields(sequence: SequencePlace | None) -> dict[str, int]:
    if sequence is None:
        return {}
    flags = RequestFlag.SEQUENCE_START if sequence.is_start else RequestFlag(0)
    flags |= RequestFlag.SEQUENCE_END if sequence.is_end else RequestFlag(0)
    return {"correlation_id": sequence.id, "flags": int(flags)}
