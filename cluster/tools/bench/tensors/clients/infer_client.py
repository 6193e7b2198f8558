"""What a benchmark of a tensor model asks of a server, and what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """Where an input lies in a region that the server knows."""

    region: str
    offset: int


@dataclass(frozen=True, slots=True)
class TurnInput:
    """`shape` has the batch dimension. `data` is in row-major order, little endian; each element of BYTES has its
    length before it. With a `place`, the server reads it from there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    place: SharedPlace | None = None


@dataclass(frozen=True, slots=True)
class SequencePlace:
    """The place of a request in a sequence."""

    id: int
    is_start: bool
    is_end: bool


@dataclass(frozen=True, slots=True, eq=False)
class InferTurn:
    """One request."""

    inputs: Sequence[TurnInput]
    sequence: SequencePlace | None = None


class InferClient(Protocol):
    """`timeout_s` ends an answer that takes longer. All methods but `ask` raise BenchError."""

    async def config(self) -> dict[str, Any]:
        """The configuration of the model, as `GET /v2/models/M/config` shows it."""

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        """`model_stats` of the statistics extension, one for each version of a model."""

    async def register(self, region: str, key: str, num_bytes: int) -> None:
        """Makes a region of system shared memory known to the server."""

    async def unregister(self, region: str) -> None: ...

    async def ask(self, turn: InferTurn, before: Sequence[tuple[InferTurn, str]], keep_text: bool) -> ClientAnswer:
        """Sends a request. Whatever goes wrong is recorded in the answer, whose chunks are responses with outputs."""

    async def close(self) -> None: ...
