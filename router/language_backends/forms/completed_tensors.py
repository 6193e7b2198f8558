"""Inputs and outputs that a configuration leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TensorConfig = dict[str, Any]  # as in the JSON of a configuration


def tensor_config(name: str, data_type: str, *dims: int, is_optional: bool = False) -> TensorConfig:
    config: TensorConfig = {"name": name, "data_type": data_type, "dims": list(dims)}
    return {**config, "optional": True} if is_optional else config


def add_missing(config: dict[str, Any], field: str, tensors: Iterable[TensorConfig]) -> None:
    """Adds those of the `tensors` whose names are not there. What the configuration says of the others counts."""
    given = config.get(field, [])
    names = {tensor["name"] for tensor in given}
    config[field] = [*given, *(tensor for tensor in tensors if tensor["name"] not in names)]
