"""Parameters of requests and responses, which models see as JSON."""

from __future__ import annotations

import json
from typing import Any

from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException


def parameters_text(parameters: dict[str, Any] | None) -> str:
    """Checks parameters that a model gives, and returns their JSON."""
    if parameters is None:
        return "{}"
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, float, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return json.dumps(parameters)
