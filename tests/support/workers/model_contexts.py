"""What a backend is told of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.workers.backends.backend import ModelContext

Configured = tuple[str, str, Sequence[int]]  # name, KServe's datatype, dims


def context_of(
    model_file: Path,
    inputs: Sequence[Configured] = (),
    outputs: Sequence[Configured] = (),
    max_batch_size: int = 8,
    parameters: dict[str, str] | None = None,
    settings: dict[str, str] | None = None,
    **config: Any,
) -> ModelContext:
    """Of the model `m`, as an instance on a CPU gets it."""
    return ModelContext(
        name="m",
        version="1",
        version_folder=model_file.parent,
        model_file=model_file,
        instance="m_0_0",
        settings=settings or {},
        config={
            "name": "m",
            "max_batch_size": max_batch_size,
            "input": [tensor(*one) for one in inputs],
            "output": [tensor(*one) for one in outputs],
            "parameters": {key: {"string_value": value} for key, value in (parameters or {}).items()},
            "instance_group": [{"name": "m_0", "count": 1, "kind": "KIND_CPU", "gpus": []}],
            **config,
        },
    )


def tensor(name: str, datatype: str, dims: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}", "dims": list(dims)}
