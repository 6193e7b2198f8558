"""Requests with tensors over HTTP, with the binary tensor extension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.request_sender import RequestSender
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferTurn, SequencePlace, TurnInput

MAX_KEPT = 4096  # encoded requests that are kept, so that the client costs little


class HttpInferClient:
    """InferClient. `version` "": the one that the server chooses."""

    def __init__(self, target: Target, model: str, version: str, timeout_s: float) -> None:
        self._target = target
        self._model = model
        self._path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
        self._sender = RequestSender(target, timeout_s, reads_bodies=False)
        self._encoded: dict[InferTurn, bytes] = {}

    async def config(self) -> dict[str, Any]:
        fields: dict[str, Any] = await self._get(f"{self._path}/config")
        if fields.get("model_transaction_policy", {}).get("decoupled"):
            raise BenchError(f"{self._model} is decoupled, which HTTP has no call for: use --protocol grpc")
        return fields

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._get(f"/v2/models/{model}/stats"))["model_stats"]
        return found

    async def register(self, region: str, key: str, num_bytes: int) -> None:
        body = orjson.dumps({"key": key, "offset": 0, "byte_size": num_bytes})
        await self._call("POST", f"/v2/systemsharedmemory/region/{region}/register", body)

    async def unregister(self, region: str) -> None:
        await self._call("POST", f"/v2/systemsharedmemory/region/{region}/unregister", b"")

    async def ask(self, turn: InferTurn, before: Sequence[tuple[InferTurn, str]], keep_text: bool) -> ClientAnswer:
        request = self._encoded.get(turn)
        if request is None:
            request = self._request(turn)
            if turn.sequence is None and len(self._encoded) < MAX_KEPT:
                self._encoded[turn] = request
        answer = await self._sender.send(request)
        answer.num_chunks, answer.model = int(answer.is_good), self._model
        return answer

    async def close(self) -> None:
        self._sender.close()

    def _request(self, turn: InferTurn) -> bytes:
        parameters: dict[str, Any] = {"binary_data_output": True, **sequence_parameters(turn.sequence)}
        head = orjson.dumps({"inputs": [input_head(one) for one in turn.inputs], "parameters": parameters})
        parts = [head, *(one.data for one in turn.inputs if one.place is None)]
        length = f"inference-header-content-length: {len(head)}"
        return self._with_head("POST", f"{self._path}/infer", b"".join(parts), "application/octet-stream", length)

    async def _get(self, path: str) -> Any:
        return orjson.loads(await self._call("GET", path, b""))

    async def _call(self, method: str, path: str, body: bytes) -> str:
        answer = await self._sender.send(self._with_head(method, path, body, "application/json"), keep_text=True)
        if not answer.is_good:
            raise BenchError(f"{self._target.root}{path}: {answer.error or answer.kind}")
        return answer.text

    def _with_head(self, method: str, path: str, body: bytes, content_type: str, *more: str) -> bytes:
        target = self._target
        lines = [f"{method} {path} HTTP/1.1", f"host: {target.netloc}", f"content-type: {content_type}"]
        lines += [f"content-length: {len(body)}", *more]
        if target.key:
            lines.append(f"authorization: Bearer {target.key}")
        lines += [f"{name}: {value}" for name, value in target.headers]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def input_head(one: TurnInput) -> dict[str, Any]:
    parameters: dict[str, Any] = {"binary_data_size": len(one.data)}
    if one.place is not None:
        parameters = {
            "shared_memory_region": one.place.region,
            "shared_memory_offset": one.place.offset,
            "shared_memory_byte_size": len(one.data),
        }
    return {"name": one.name, "datatype": one.datatype, "shape": one.shape, "parameters": parameters}


def sequence_parameters(sequence: SequencePlace | None) -> dict[str, int | bool]:
    if sequence is None:
        return {}
    return {"sequence_id": sequence.id, "sequence_start": sequence.is_start, "sequence_end": sequence.is_end}
