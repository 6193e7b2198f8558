"""Values of JSON objects of clients, read with Triton's texts of what is wrong with them."""

from __future__ import annotations

from typing import Any, NoReturn

from slipstream.router.tensors.infer_error import InferError, InferErrorCode

MAX_UINT64 = (1 << 64) - 1
MAX_INT64 = (1 << 63) - 1


def refuse(text: str, prefix: str = "") -> NoReturn:
    """Raises INTERNAL, which is what Triton calls JSON that is not as it should be."""
    raise InferError(f"{prefix}: {text}" if prefix else text, InferErrorCode.INTERNAL)


def member(fields: object, name: str, prefix: str = "") -> Any:
    """A field that must be there."""
    if not isinstance(fields, dict) or name not in fields:
        refuse(f"attempt to access non-existing object member '{name}'", prefix)
    return fields[name]


def found(fields: object, name: str) -> Any:
    """A field, or None."""
    return fields.get(name) if isinstance(fields, dict) else None


def has(fields: object, name: str) -> bool:
    return isinstance(fields, dict) and name in fields


def as_text(value: object, prefix: str = "") -> str:
    if not isinstance(value, str):
        refuse("attempt to access JSON non-string as string", prefix)
    return value


def as_bool(value: object, prefix: str = "") -> bool:
    if not isinstance(value, bool):
        refuse("attempt to access JSON non-boolean as boolean", prefix)
    return value


def as_uint(value: object, prefix: str = "") -> int:
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        refuse("attempt to access JSON non-unsigned-integer as unsigned-integer", prefix)
    return value


def as_list(value: object, prefix: str = "") -> list[Any]:
    if not isinstance(value, list):
        refuse("attempt to access JSON non-array as array", prefix)
    return value


def members(value: object, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse("attempt to get members for non-object", prefix)
    return value
