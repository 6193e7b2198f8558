"""What the router, instance hosts and instances say to each other, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from slipstream.router.instances.frames.frame_reader import Json
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, ParameterValue
from slipstream.router.tensors.model_spec import InstanceKind
from slipstream.router.tensors.tensor import Tensor, TensorData

PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class StartInstance:
    """What an instance host needs to start an instance, and what it tells the next router about one that runs.
    `launch` is unique. `folder` is the model's. `parameters` are those of the configuration. `environment` are further
    variables of the process. `revision` is the caller's own: by it a later router knows whether a running instance
    has the present files and configuration of the model; "": it does not take the instance over. `settings` are those
    of `repository.backend_config` for the backend. `backend_file` is the backend's code; "": it is Slipstream's own."""

    launch: str
    name: str
    model: str
    version: str
    backend: str
    folder: str
    version_folder: str
    model_file: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    kind: InstanceKind = "KIND_CPU"
    device: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    backend_file: str = ""


@dataclass(frozen=True, slots=True)
class InitializeInstance:
    """`args` are those of `TritonPythonModel.initialize`. `outputs` has the datatype of each output."""

    args: Mapping[str, str]
    outputs: Mapping[str, str]
    is_decoupled: bool = False


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """One place of a batch. `n` is unique on this link. `request` None: a place without a request, which has only
    `extra_inputs`; its response is dropped. `extra_outputs` are outputs that the router itself needs, beside those that
    the request asks for."""

    n: int
    request: InferRequest | None
    extra_inputs: tuple[Tensor, ...] = ()
    extra_outputs: tuple[str, ...] = ()


@dataclass(slots=True)
class InstanceResponse:
    """A response as an instance gives it. `release` gives the memory of its outputs back to the instance; None: there
    is none. It may be called once."""

    outputs: list[Tensor] = field(default_factory=list)
    error: InferError | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    release: Callable[[], None] | None = None


@dataclass(slots=True)
class Executed:
    """`responses` are in the order of the batch, None where there is none (yet); empty if the model is decoupled.
    `error` is the text for all requests of the batch that have no response; with an `error_code` of Triton's it stands
    as it is, else it is what Python code has raised. `rescheduled` are numbers `n`. `lost_file` is the key of an
    instance's memory that was not there any more, so that nothing was executed."""

    batch: int
    responses: list[InstanceResponse | None]
    error: str | None = None
    rescheduled: list[int] = field(default_factory=list)
    compute_ns: int = 0
    input_ns: int = 0
    output_ns: int = 0
    error_code: str | None = None
    lost_file: str | None = None


@dataclass(slots=True)
class Responded:
    """One response by a response sender. `response` None: an empty one, which is the end if it `is_final`."""

    n: int
    response: InstanceResponse | None
    is_final: bool


@dataclass(slots=True)
class ModelCall:
    """A request that a model makes to another one (BLS). `parent` is the `n` of the request that it serves, if it says
    so. The inputs are valid until the last `call_response`."""

    call: int
    request: InferRequest
    is_decoupled: bool = False
    parent: int | None = None


@dataclass(slots=True)
class ControlCall:
    """What a model asks of the repository."""

    call: int
    action: Literal["load", "unload", "is_ready"]
    model: str
    model_version: str = ""
    config_json: str = ""
    files: dict[str, TensorData] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogLine:
    """`level` is info, warn, error or verbose."""

    level: str
    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """The configuration after the model's `auto_complete_config`."""

    config: Json


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is initialised."""


@dataclass(frozen=True, slots=True)
class InstanceFailed:
    """Import, completion or initialisation failed, with this text and code of Triton's."""

    error: str
    code: str = "INTERNAL"


@dataclass(frozen=True, slots=True)
class CallCancelled:
    call: int


@dataclass(frozen=True, slots=True)
class MetricsChanged:
    families: list[Json]


@dataclass(frozen=True, slots=True)
class Released:
    """The instance has read these places: the key of a file, and the offset."""

    places: list[tuple[str, int]]


InstanceMessage = (
    Executed
    | Responded
    | ModelCall
    | ControlCall
    | LogLine
    | Completed
    | Ready
    | InstanceFailed
    | CallCancelled
    | MetricsChanged
    | Released
)


@dataclass(frozen=True, slots=True)
class InstanceEnd:
    """Why an instance is gone. `returncode` None: its process was never started, or its host was lost."""

    reason: str
    returncode: int | None = None
    log_tail: str = ""
    is_host_lost: bool = False
