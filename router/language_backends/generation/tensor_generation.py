"""What a tensor request asks of a language model, and how its answer becomes tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.router.api.generation.generation_batch import GenerationBatch
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.language_backends.generation.output_part import Grid
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import ModelSpec
from slipstream.router.tensors.tensor import Tensor

TokenWords = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One prompt. `fields` are those of a completion in the API of OpenAI, with vLLM's. An output ends with one of
    `stop_words`, which is part of it, and has none of `bad_words`."""

    fields: dict[str, Any]
    stop_words: TokenWords = ()
    bad_words: TokenWords = ()


class ResponseWriter(Protocol):
    """Makes the tensors of a response. `batches` are the prepared rows. In a stream, `grid` has what is new."""

    def outputs(self, grid: Grid, batches: Sequence[GenerationBatch]) -> list[Tensor]: ...

    def shows(self, grid: Grid) -> bool:
        """Whether a response of a stream with this is worth sending."""


@dataclass(frozen=True, slots=True)
class TensorGeneration:
    """`is_streamed`: a response for each part of an output, else one for all. `stops` the requests of the same client's
    id instead, if this is set."""

    rows: Sequence[RowRequest]
    is_streamed: bool
    writer: ResponseWriter
    stops: bool = False


class RequestForm(Protocol):
    """The tensors of one kind of model."""

    def complete(self, config: dict[str, Any]) -> None:
        """Adds what a configuration (JSON) leaves out."""

    def bind(self, spec: ModelSpec) -> None:
        """Its configuration is complete. Raises LoadError if it cannot be served with that."""

    def read(self, active: ActiveRequest) -> TensorGeneration:
        """Raises InferError."""

    def failure(self, error: InferError) -> InferError:
        """How a failure is worded for clients of this kind of model."""
