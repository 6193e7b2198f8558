"""Writes docs/protocol/messages.md from the classes of the messages."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from slipstream.router.protocol import messages  # noqa: E402
from slipstream.router.protocol.messages import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION  # noqa: E402
from slipstream.router.protocol.wire import TYPE_CODES  # noqa: E402

PAGE = ROOT / "docs" / "protocol" / "messages.md"
HEAD = f"""# Messages

Version {PROTOCOL_VERSION} of the protocol; the oldest one that is understood is {OLDEST_PROTOCOL_VERSION}. How messages
travel and follow each other is on the [page before](README.md). Fields stand in the order in which they are sent. Those
with a default may be left out from the end on. This page is written by `scripts/reference/protocol_messages.py`.
"""


def is_record(annotation: Any) -> bool:
    is_tuple = isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    return dataclasses.is_dataclass(annotation) or is_tuple


def fields_of(cls: type) -> list[tuple[str, Any, str]]:
    """Name, type and default ("": it must be given) of each field."""
    hints = get_type_hints(cls)
    if dataclasses.is_dataclass(cls):
        return [(field.name, hints[field.name], default_of(field)) for field in dataclasses.fields(cls)]
    defaults: dict[str, Any] = cls._field_defaults  # type: ignore[attr-defined]
    names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
    return [(name, hints[name], shown(defaults[name]) if name in defaults else "") for name in names]


def default_of(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else shown(field.default)


def shown(value: Any) -> str:
    return f"`{type(value).__name__}()`" if is_record(type(value)) else f"`{value!r}`"


def type_text(annotation: Any) -> str:
    """The type in the words of MessagePack."""
    if is_record(annotation):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    plain = {int: "int", float: "float", str: "str", bytes: "bin", bool: "bool", type(None): "nil"}
    if annotation in plain:
        return plain[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{one!r}`" for one in args)
    if origin in (Union, types.UnionType):
        return " or ".join(map(type_text, args))
    assert origin is tuple
    if len(args) == 2 and args[1] is Ellipsis:
        return f"array of {type_text(args[0])}"
    return f"[{', '.join(map(type_text, args))}]"


def records_in(annotation: Any) -> Iterator[type]:
    if is_record(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from records_in(part)


def section(cls: type, code: int | None) -> str:
    """A message or a part of one."""
    about = inspect.cleandoc(cls.__doc__ or "")
    if about.startswith(f"{cls.__name__}("):
        about = ""  # the one that a dataclass or a named tuple gives itself
    about = re.sub(r"\b(?:\w+\.)+(\w+)\b(?=`)", r"\1", about)
    fields = fields_of(cls)
    if code is not None:
        about = f"Code {code}. {about}"
    lines = [f"### {cls.__name__}", "", *([about, ""] if about else [])]
    if fields:
        lines += ["| field | type | default |", "|---|---|---|"]
        lines += [f"| `{name}` | {type_text(annotation)} | {default} |" for name, annotation, default in fields]
    else:
        lines.append("It has no fields.")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    parts: list[type] = []
    for cls in TYPE_CODES:
        queue = [cls]
        while queue:
            for _, annotation, _ in fields_of(queue.pop()):
                new = [one for one in records_in(annotation) if one not in parts and one not in TYPE_CODES]
                parts += dict.fromkeys(new)
                queue += new
    workers = [section(cls, TYPE_CODES[cls]) for cls in typing.get_args(messages.WorkerMessage)]
    router = [section(cls, TYPE_CODES[cls]) for cls in typing.get_args(messages.RouterMessage)]
    groups = (
        ("From a worker", workers),
        ("From the router", router),
        ("Parts of messages", [section(cls, None) for cls in sorted(parts, key=lambda cls: cls.__name__)]),
    )
    return HEAD + "".join(f"\n## {title}\n\n" + "\n".join(sections) for title, sections in groups)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
