"""Text arguments of the API: models give `str`, or the `bytes` of a BYTES tensor's element."""

from __future__ import annotations

from typing import Any


def text_of(value: Any, what: str) -> str:
    """Raises TypeError, which names the argument."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    raise TypeError(f"{what} must be a str, got {type(value).__name__}: {value!r}")
