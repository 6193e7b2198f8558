"""A tensor request, its responses, and what receives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.tensor import RegionSlice, Tensor

ParameterValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """`classification` is k of the classification extension; 0: the tensor itself. `into` is where the client wants the
    bytes, in shared memory of its own."""

    name: str
    classification: int = 0
    into: RegionSlice | None = None


@dataclass(frozen=True, slots=True)
class SequenceFlags:
    """`correlation_id` names the sequence; 0 and "" name none."""

    correlation_id: int | str
    is_start: bool = False
    is_end: bool = False


@dataclass(slots=True)
class RequestTokens:
    """What language models have used for a request of a client and for those that followed from it."""

    num_prompt: int = 0
    num_cached: int = 0  # of the prompts
    num_output: int = 0


@dataclass(slots=True)
class InferRequest:
    """One request to one model. `model_version` "" is the highest one that is ready; `requested` () are all outputs.
    `parameters` are what reaches the model. `priority` 0 is the model's default; `timeout_us` 0 is none. `tenant` is
    for fairness and records. `parent_id` is the id of the request whose model has made this one (BLS).
    `received_s` is a time of `time.monotonic`. `release` gives back the memory of the inputs; it is called once, by
    what the request was submitted to, when nothing reads them any more. `tokens` is there if the client's API key
    counts them."""

    model: str
    model_version: str = ""
    id: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    requested: tuple[RequestedOutput, ...] = ()
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    sequence: SequenceFlags | None = None
    priority: int = 0
    timeout_us: int = 0
    tenant: str = ""
    request_id: str = ""  # ours, as in x-request-id, records and traces; `id` is the client's and may be empty
    trace_id: str = ""
    parent_id: str = ""
    received_s: float = 0.0
    release: Callable[[], None] | None = None
    tokens: RequestTokens | None = None


@dataclass(slots=True)
class InferResponse:
    """One response. Outputs may lie in memory of the instance: `release` gives that back, and must be called once,
    after the bytes have been copied or sent. A decoupled model may give a response with an `error`, without outputs,
    and go on: that is no end of the request."""

    model: str
    model_version: str
    id: str
    outputs: list[Tensor]
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    release: Callable[[], None] | None = None
    error: InferError | None = None


class ResponseReceiver(Protocol):
    """What a request's answer goes to. It ends exactly once: with a response that `is_final`, with `complete`, or with
    `fail`. All calls come on the router's event loop; none is made from within `submit`."""

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        """One of the responses. A model that is not decoupled gives exactly one, which is final."""

    def complete(self) -> None:
        """There are no more responses (a decoupled model ended without a last one, or gave none)."""

    def fail(self, error: InferError) -> None:
        """The request has failed."""
