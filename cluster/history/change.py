"""One change of a cluster, and its line in the history's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

ChangeKind = Literal[
    "cluster",  # a driver started, or ended
    "scale",
    "role",
    "remove",  # a worker that an operator drained
    "model",  # added, removed, renamed, or a worker that went to another model
    "update",
    "split",
    "keys",
    "config",
    "planner",
]


@dataclass(frozen=True, slots=True)
class Change:
    """`number` counts from 1 over all drivers of the cluster, `at_s` is in seconds since the epoch. `subject` is what
    was changed, as `decode`, `decode-1` or `1 -> 2`; `old` and `new` are how it was and is. `model` is "" for what
    concerns all models."""

    number: int
    at_s: float
    who: str
    what: ChangeKind
    subject: str = ""
    old: str = ""
    new: str = ""
    why: str = ""
    model: str = ""

    @property
    def line(self) -> bytes:
        """As JSON, with a newline."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Change | None:
        """The change in a line of the file. None if there is none: a driver that was killed may have left half a
        line, and a later version may write further kinds of lines."""
        try:
            values: Mapping[str, Any] = json.loads(line)
            return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})
        except (ValueError, TypeError):
            return None
