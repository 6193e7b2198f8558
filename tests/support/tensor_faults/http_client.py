"""A client of KServe over HTTP on a plain connection, which stays open: what breaks is seen as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import numpy as np

from tests.support.tensor_faults.tensor_call import DATATYPES, Refused, TensorCall, array_of

HEAD_LENGTH = "inference-header-content-length"


class HttpTensorClient:
    """A TensorClient. `num_connects` counts the connections that it has needed."""

    protocol = "http"

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self.num_connects = 0

    async def infer(self, call: TensorCall) -> dict[str, np.ndarray]:
        path, headers, body = message_of(call)
        status, answered, answer = await self.post(path, body, headers)
        if status != 200:
            raise Refused(str(status), answer.decode(errors="replace"))
        return outputs_of(answered, answer)

    async def leave(self, call: TensorCall, after_s: float) -> None:
        path, headers, body = message_of(call)
        await self._send(path, body, headers)
        await asyncio.sleep(after_s)  # what the server has done with it by then is the point
        await self.close()

    async def stream(self, model: str, fields: dict[str, object], most: int) -> AsyncIterator[dict[str, object]]:
        """Events of `generate_stream`; goes away after `most`. Raises Refused, also for an event with an error."""
        await self._send(f"/v2/models/{model}/generate_stream", json.dumps(fields).encode(), {})
        status, headers = await self._head()
        if status != 200:
            raise Refused(str(status), (await self._body(headers)).decode(errors="replace"))
        try:
            async for event in self._events():
                if "error" in event:
                    raise Refused("event", str(event["error"]))
                yield event
                most -= 1
                if not most:
                    break
        finally:
            await self.close()

    async def post(
        self, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Raises OSError if the connection breaks."""
        try:
            await self._send(path, body, headers or {})
            status, answered = await self._head()
            return status, answered, await self._body(answered)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
            self.num_connects += 1
        lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()

    async def _head(self) -> tuple[int, dict[str, str]]:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(f"closed after {len(error.partial)} bytes of a head") from error
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def _body(self, headers: dict[str, str]) -> bytes:
        try:
            return await self._reader.readexactly(int(headers["content-length"]))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(f"closed after {len(error.partial)} bytes of a body") from error
        except ConnectionResetError as error:
            raise ConnectionResetError("reset in the midst of a body") from error

    async def _events(self) -> AsyncIterator[dict[str, object]]:
        """Of a chunked answer, each of whose events is in one line."""
        while line := await self._reader.readline():
            with suppress(ValueError):
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
                elif int(line, 16) == 0:
                    return
        raise ConnectionResetError("closed within a stream")


def message_of(call: TensorCall) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body."""
    inputs, parts = [], []
    for name, array in call.inputs.items():
        parts.append(array.tobytes())
        sized = {"binary_data_size": len(parts[-1])}
        datatype = DATATYPES[array.dtype.name]
        inputs.append({"name": name, "shape": array.shape, "datatype": datatype, "parameters": sized})
    parameters = {**call.parameters, "binary_data_output": True}
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return f"/v2/models/{call.model}/infer", {HEAD_LENGTH: str(len(head))}, b"".join([head, *parts])


def outputs_of(headers: dict[str, str], body: bytes) -> dict[str, np.ndarray]:
    at = int(headers[HEAD_LENGTH])
    found = {}
    for output in json.loads(body[:at])["outputs"]:
        num_bytes = output["parameters"]["binary_data_size"]
        found[output["name"]] = array_of(body[at : at + num_bytes], output["datatype"], output["shape"])
        at += num_bytes
    return found
