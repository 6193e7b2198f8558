"""A request that no server should be asked, over HTTP: it is to be refused by name, soon, and in little memory."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

from tests.support.tensor_faults.http_client import HEAD_LENGTH

JSON = {"content-type": "application/json"}
REFUSED = tuple(range(400, 500))
TRITON = (*REFUSED, 500)  # which Triton answers to JSON and configurations that cannot be read
ANY = (200, *TRITON)
BOUNDARY = "edge"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
MIB = 1 << 20
HARMLESS = ("tensorrtllm request_output_len 2**31-1", "tensorrtllm top_k -7", "tensorrtllm offsets below 0")
DEEP = 100_000  # brackets, one in the other
MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """`allowed`: statuses. Those that may be answered with 200 are hostile only in their size."""

    name: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    allowed: tuple[int, ...] = REFUSED


def json_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


def bytes_tensor(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in elements)


def binary(name: str, model: str, tensors: list[tuple[str, str, list[int], bytes]]) -> HostileRequest:
    inputs = [
        {"name": of, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for of, datatype, shape, data in tensors
    ]
    head = json_bytes({"inputs": inputs})
    body = b"".join([head, *(data for *_, data in tensors)])
    allowed = ANY if name in HARMLESS else TRITON
    return HostileRequest(name, f"/v2/models/{model}/infer", body, {HEAD_LENGTH: str(len(head))}, allowed)


def form(
    name: str, file: bytes, fields: dict[str, str] | None = None, allowed: tuple[int, ...] = REFUSED
) -> HostileRequest:
    parts = []
    for key, value in {"model": "keypad", **(fields or {})}.items():
        parts.append(f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode())
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode()
    body = b"".join([*parts, head, file, f"\r\n--{BOUNDARY}--\r\n".encode()])
    return HostileRequest(name, "/v1/audio/transcriptions", body, dict(FORM), allowed)


def load(name: str, model: str, config: str, allowed: tuple[int, ...] = TRITON) -> HostileRequest:
    body = json_bytes({"parameters": {"config": config}})
    return HostileRequest(name, f"/v2/repository/models/{model}/load", body, allowed=allowed)
