"""What the tensor API asks of the router: models, requests and the repository. `router.infer` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, ParameterValue, ResponseReceiver
from slipstream.router.tensors.model_spec import ModelPhase, ModelSpec


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A model in the index of the repository; `version` "" and `phase` None: it was never loaded."""

    name: str
    version: str = ""
    phase: ModelPhase | None = None
    reason: str = ""


@dataclass(slots=True)
class DurationCount:
    """How often something happened, and how long it took in all, in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns


@dataclass(slots=True)
class InferDurations:
    """The stages of requests, as in the statistics extension."""

    success: DurationCount = field(default_factory=DurationCount)
    fail: DurationCount = field(default_factory=DurationCount)
    queue: DurationCount = field(default_factory=DurationCount)
    compute_input: DurationCount = field(default_factory=DurationCount)
    compute_infer: DurationCount = field(default_factory=DurationCount)
    compute_output: DurationCount = field(default_factory=DurationCount)
    cache_hit: DurationCount = field(default_factory=DurationCount)
    cache_miss: DurationCount = field(default_factory=DurationCount)


@dataclass(slots=True)
class BatchDurations:
    """Of the executions of one batch size."""

    compute_input: DurationCount = field(default_factory=DurationCount)
    compute_infer: DurationCount = field(default_factory=DurationCount)
    compute_output: DurationCount = field(default_factory=DurationCount)


@dataclass(slots=True)
class ResponseDurations:
    """Of the n-th responses of a decoupled model."""

    compute_infer: DurationCount = field(default_factory=DurationCount)
    compute_output: DurationCount = field(default_factory=DurationCount)
    success: DurationCount = field(default_factory=DurationCount)
    fail: DurationCount = field(default_factory=DurationCount)
    empty_response: DurationCount = field(default_factory=DurationCount)
    cancel: DurationCount = field(default_factory=DurationCount)


@dataclass(slots=True)
class ModelStatistics:
    """Of one version. `last_inference_ms` is a Unix time in milliseconds; `inference_count` counts rows."""

    name: str
    version: str
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    durations: InferDurations = field(default_factory=InferDurations)
    by_batch_size: dict[int, BatchDurations] = field(default_factory=dict)
    responses: dict[str, ResponseDurations] = field(default_factory=dict)


class Submission(Protocol):
    """A request under way."""

    def cancel(self, because: InferError | None = None) -> None:
        """`fail` of its receiver comes unless it has ended, with `because`; None: the client does not want it any more,
        which is CANCELLED."""


class InferService(Protocol):
    """Serves tensor requests. All methods run on the router's event loop. All raise InferError."""

    def spec_of(self, model: str, version: str = "") -> ModelSpec:
        """A version that is ready. Raises NOT_FOUND for unknown ones, with Triton's texts."""

    def is_ready(self, model: str, version: str = "") -> bool: ...

    def submit(self, request: InferRequest, receiver: ResponseReceiver) -> Submission:
        """Checks a request against its model and takes it; raises what is wrong with it, and then has called
        `request.release`. A model that is not ready, or whose queue is full, raises too."""

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        """Of all models, of all versions of one, or of one version. Raises NOT_FOUND."""


class RepositoryControl(Protocol):
    """The repository extension. All methods run on the router's event loop. All raise InferError."""

    def is_server_ready(self) -> bool:
        """The models of the start have been tried, the server does not end and, with strict readiness, no version is
        loaded for the first time, and none has failed. While a version is loaded again the one before serves."""

    def index(self, *, only_ready: bool = False) -> Sequence[IndexEntry]: ...

    async def load(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model. `files` (`<version>/<path>` -> contents) replace those of the repository and need
        a `config_json`. Returns when it is ready; raises when it could not be loaded."""

    async def unload(self, model: str, *, with_dependents: bool = False) -> None: ...


TraceSettings = dict[str, list[str]]
LogSettings = dict[str, ParameterValue]
