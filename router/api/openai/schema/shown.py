"""Shows a value of a request in an error: short, on one line, and with printable characters only."""

from __future__ import annotations

from typing import Any

MAX_TEXT_CHARS = 64
MAX_ITEMS = 3
MAX_DEPTH = 2
MAX_DIGITS = 20
MAX_CHARS = 200


def shown(value: Any) -> str:
    """`value` in the words of JSON, with texts in single quotes, because the error itself is JSON. What is long or
    nested deeply is shortened. Its time does not depend on the size of `value`."""
    text = _shown(value, 0)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."


def _shown(value: Any, depth: int) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, int):
        is_long = value.bit_length() > 3 * MAX_DIGITS
        return f"a number of {value.bit_length()} bits" if is_long else str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        if depth >= MAX_DEPTH and value:
            return "[...]"
        items = [_shown(item, depth + 1) for item in value[:MAX_ITEMS]]
        return f"[{', '.join(items + ['...'] * (len(value) > MAX_ITEMS))}]"
    if isinstance(value, dict):
        if depth >= MAX_DEPTH and value:
            return "{...}"
        few = [key for key, _ in zip(value, range(MAX_ITEMS), strict=False)]
        items = [f"{literal(str(key))}: {_shown(value[key], depth + 1)}" for key in few]
        return f"{{{', '.join(items + ['...'] * (len(value) > MAX_ITEMS))}}}"
    return "{...}"  # an object that has been read


def literal(text: str) -> str:
    """The beginning of a text as a literal, in which whatever is not printable is escaped."""
    return repr(text[:MAX_TEXT_CHARS] + "..." * (len(text) > MAX_TEXT_CHARS))
