"""What the metadata of the server and of a model say."""

from __future__ import annotations

from typing import Any

from slipstream import __version__
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec

SERVER_NAME = "triton"  # which clients compare with
SERVER_VERSION = f"2.51.0+slipstream.{__version__}"  # that of the Triton whose behaviour this is
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def model_metadata(spec: ModelSpec) -> dict[str, Any]:
    """Shapes have the batch dimension."""
    return {
        "name": spec.name,
        "versions": list(spec.versions or (spec.version,)),
        "platform": spec.platform,
        "inputs": [_tensor(tensor, spec) for tensor in spec.inputs],
        "outputs": [_tensor(tensor, spec) for tensor in spec.outputs],
    }


def shape_with_batch(tensor: TensorSpec, spec: ModelSpec) -> list[int]:
    return [-1, *tensor.dims] if spec.max_batch_size else list(tensor.dims)


def _tensor(tensor: TensorSpec, spec: ModelSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape_with_batch(tensor, spec)}
