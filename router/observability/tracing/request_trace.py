"""What is kept of a sampled request until its spans are made, which happens after its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from slipstream.router.infer.requests.request_record import InferRecord
from slipstream.router.observability.tracing.context import TraceContext
from slipstream.router.protocol.generation import GenerationError
from slipstream.router.requests.history import RequestRecord

Value = str | bool | int | float | tuple[str, ...]


def new_span_id(source: Random) -> str:
    """16 hex digits, not all zero."""
    return f"{source.getrandbits(64) or 1:016x}"


@dataclass(frozen=True, slots=True)
class RpcRefusal:
    """The status of an RPC that was not accepted: gRPC's number and name, and why."""

    code: int
    name: str
    message: str


@dataclass(slots=True)
class RequestTrace:
    """One traced request, by HTTP or, where `rpc` names a method, by gRPC. `records` and `asked` are set if it led to
    generations, `tensor_request` if it was one to a tensor model, `refusal` or `rpc_refusal` if it was not admitted.
    Times are `time.monotonic()` seconds."""

    trace_id: str
    span_id: str
    parent: TraceContext | None
    method: str
    path: str
    begin_s: float
    end_s: float = 0.0
    status: int = 0
    http_request_id: str = ""
    records: Sequence[RequestRecord] = ()
    asked: Mapping[str, Value] = field(default_factory=dict)
    reasons: Sequence[str] = ()
    refusal: GenerationError | None = None
    tensor_request: InferRecord | None = None
    rpc: str = ""
    rpc_refusal: RpcRefusal | None = None

    def answered(
        self, records: Sequence[RequestRecord], asked: Mapping[str, Value], reasons: Sequence[str] = ()
    ) -> None:
        """Adds the generations of the request, and its fields by their names in OpenTelemetry's GenAI conventions.
        `reasons` are why they ended, in the words of the answer."""
        self.records = records
        self.reasons = reasons
        self.asked = asked
