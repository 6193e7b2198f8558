"""Typed access to the JSON files of a model directory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.router.model_files.json_file import parse_json, shortened, why_no_file

MAX_INTEGER = 2**31 - 1  # of a size, a position or a token id


class ModelError(ValueError):
    """A model directory cannot be served. The text is one sentence that names the file and the key or tensor."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError if there is none."""
    if (problem := why_no_file(path)) is not None:
        raise ModelError(f"{path} {problem}")
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


class NotNativeError(ModelError):
    """No native family computes what the file asks for, though transformers may. The text is that of a ModelError."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed access to a JSON object of a file. null counts as absent. All methods raise ModelError."""

    path: Path
    values: dict[str, Any]
    prefix: str = ""

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {self.prefix}{key}: {shortened(problem)}")

    def not_native(self, key: str, problem: str) -> NotNativeError:
        return NotNativeError(f"{self.path}: {self.prefix}{key}: {shortened(problem)}")

    def get(self, key: str, default: object = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._required(key, default)
        if type(value) is not int or value < 1:
            raise self.error(key, f"must be a positive integer, got {value!r}")
        if value > MAX_INTEGER:
            raise self.error(key, f"must be at most {MAX_INTEGER}, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self.error(key, f"must be a positive number, got {value!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, got {value!r}")
        return value

    def section(self, key: str) -> Keys | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, got {value!r}")
        return Keys(self.path, value, f"{self.prefix}{key}.")

    def _required(self, key: str, default: object) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        return value
