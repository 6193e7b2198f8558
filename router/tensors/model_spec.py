"""A tensor model as the router needs to know it: its configuration, complete and checked, without protobuf.

`model_repository` makes it from the protobuf message `inference.ModelConfig`; the fields have the meaning and the units
of Triton's `model_config.proto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

InstanceKind = Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL"]
ControlKind = Literal["START", "READY", "END", "CORRID"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output. `datatype` is KServe's name; `dims` has -1 for sizes that may vary, and does not have the
    batch dimension. `labels` are of the classification extension."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    is_optional: bool = False
    is_ragged: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    max_queue_size: int = 0  # 0: no bound
    default_timeout_us: int = 0  # 0: none
    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    allow_timeout_override: bool = False


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """An extra input of the model. `false_true` are its two values for START, READY and END; for CORRID `datatype` is
    that of the id."""

    name: str
    kind: ControlKind
    datatype: str
    false_true: tuple[float, float] = (0, 1)


@dataclass(frozen=True, slots=True)
class InitialState:
    """`data` None: zeros."""

    datatype: str
    dims: tuple[int, ...]
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class ImplicitStateSpec:
    """Implicit state: an output of one request that is an input of the next one of its sequence."""

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    initial: InitialState | None = None


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """`strategy` "direct": a sequence has a fixed place in the batch. "oldest": the heads of the sequences go through a
    dynamic batcher."""

    strategy: Literal["direct", "oldest"] = "direct"
    max_idle_us: int = 1_000_000
    controls: tuple[SequenceControl, ...] = ()
    states: tuple[ImplicitStateSpec, ...] = ()
    is_iterative: bool = False
    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0  # direct
    max_candidate_sequences: int = 0  # oldest
    preferred_batch_sizes: tuple[int, ...] = ()  # oldest
    preserve_ordering: bool = False  # oldest


@dataclass(frozen=True, slots=True)
class RateResource:
    """So many of a resource does one execution of an instance take; `is_global`: of one for all devices."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    name: str
    count: int
    kind: InstanceKind
    devices: tuple[int, ...] = ()
    rate_resources: tuple[RateResource, ...] = ()
    rate_priority: int = 0
    is_passive: bool = False


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """`file` is a path in the folder `warmup` of the model's folder."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    source: Literal["zero", "random", "file"]
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble. `inputs` has the ensemble's tensor for each input of the model, `outputs` that for each
    output. `model_version` "" is the highest one that is ready."""

    model: str
    model_version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


class ModelPhase(Enum):
    """Of a version, as the index of a repository shows it."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One version of a model. `folder` is the model's folder in its repository (with the files of this load, if they
    came with it). `config_json` is the complete configuration as `GET .../config` shows it, with all defaults: what
    `initialize` of a Python model gets. `platform` is what the metadata show. `parameters` are those of the
    configuration."""

    name: str
    version: str
    folder: Path
    backend: str
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    config_json: bytes
    versions: tuple[str, ...] = ()  # of this model that are served, for the metadata
    model_file: str = ""
    is_decoupled: bool = False
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    instance_groups: tuple[InstanceGroup, ...] = ()
    warmup: tuple[WarmupSample, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    uses_response_cache: bool = False
    steps: tuple[EnsembleStep, ...] = ()  # of an ensemble
    max_step_requests: int = 0  # of an ensemble, that may be in one step at a time; 0: no bound
