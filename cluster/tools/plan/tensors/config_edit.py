"""Changes settings in the text of a `config.pbtxt`, and leaves all else as it is, with its comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf import text_format

from slipstream.cluster.tools.plan.tensors.tensor_settings import TensorSettings
from slipstream.router.model_repository.config.config_text import parse_text

TOKEN = re.compile(r"""\s+|\#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{}<>\[\]:;,]|[^\s{}<>\[\]:;,"'#]+""")
OPENING, CLOSING = {"{", "<", "["}, {"}", ">", "]"}


@dataclass(frozen=True, slots=True)
class FieldSpan:
    """One field of a message: from its name to the end of its value. `body` is what stands within the brackets of the
    first message of its value; None: it is no message."""

    name: str
    start: int
    value_start: int
    end: int
    body: tuple[int, int] | None


def edited(text: str, settings: TensorSettings) -> str:
    """The text with these settings. If it cannot be changed in its places, it is written anew from what it says,
    without comments. Raises ConfigError."""
    wanted = parse_text(text)
    settings.set_in(wanted)
    changed = in_place(text, settings)
    if parse_text(changed) == wanted:
        return changed
    written: str = text_format.MessageToString(wanted)
    return written


def in_place(text: str, settings: TensorSettings) -> str:
    config = parse_text(text)
    if settings.max_batch_size != config.max_batch_size:
        text = with_field(text, (0, len(text)), "max_batch_size", f": {settings.max_batch_size}")
    if settings.delay_us is not None:
        text = with_batching(text, settings.delay_us, settings.preferred)
    groups = [field for field in fields_of(text, (0, len(text))) if field.name == "instance_group"]
    if groups and groups[0].body is not None:
        return with_field(text, groups[0].body, "count", f": {settings.instances}")
    if settings.instances == 1:
        return text
    return with_field(text, (0, len(text)), "instance_group", f" [ {{ count: {settings.instances} }} ]")


def with_batching(text: str, delay_us: int, preferred: tuple[int, ...]) -> str:
    if body_of(text, "dynamic_batching") is None:
        text = with_field(text, (0, len(text)), "dynamic_batching", " { }")
    values = {
        "preferred_batch_size": f": [ {', '.join(map(str, preferred))} ]" if preferred else None,
        "max_queue_delay_microseconds": f": {delay_us}" if delay_us else None,
    }
    for name, value in values.items():
        body = body_of(text, "dynamic_batching")
        assert body is not None
        text = with_field(text, body, name, value) if value is not None else without_field(text, body, name)
    return text


def body_of(text: str, name: str) -> tuple[int, int] | None:
    return next((field.body for field in fields_of(text, (0, len(text))) if field.name == name), None)


def with_field(text: str, within: tuple[int, int], name: str, value: str) -> str:
    """With one value of a field of the message whose body is `within`: where its first one stands, or at the end."""
    found = [field for field in fields_of(text, within) if field.name == name]
    if not found:
        return added(text, within, f"{name}{value}")
    for field in reversed(found[1:]):
        text = text[: field.start] + text[field.end :]
    first = found[0]
    return text[: first.start] + name + value + text[first.end :]


def without_field(text: str, within: tuple[int, int], name: str) -> str:
    for field in reversed([field for field in fields_of(text, within) if field.name == name]):
        start = field.start
        line = text.rfind("\n", 0, start) + 1
        ends_line = text[field.end :].startswith("\n")
        if ends_line and not text[line:start].strip():
            text = text[:line] + text[field.end + 1 :]  # the whole line
        else:
            text = text[:start].rstrip(" ") + text[field.end :]
    return text


def added(text: str, within: tuple[int, int], field: str) -> str:
    """In a line of its own, if the body has lines."""
    start, end = within
    body = text[start:end]
    if start == 0:  # the whole text
        return text + ("" if not text or text.endswith("\n") else "\n") + field + "\n"
    if "\n" in body:
        kept = body.rstrip(" \t")
        indent = re.search(r"\n([ \t]+)\S", body)
        line = ("" if kept.endswith("\n") else "\n") + (indent[1] if indent else "  ") + field + "\n"
        return text[:start] + kept + line + body[len(kept) :] + text[end:]
    return f"{text[:start]}{body.rstrip()} {field} {text[end:]}"


def fields_of(text: str, within: tuple[int, int]) -> Iterator[FieldSpan]:
    """The fields of the message whose body is `within`. The text can be parsed, so brackets fit."""
    tokens = [
        match for match in TOKEN.finditer(text, *within) if not match[0].isspace() and not match[0].startswith("#")
    ]
    place = 0
    while place < len(tokens):
        if tokens[place][0] in ",;":
            place += 1
            continue
        name = tokens[place]
        value = place + 1
        if value < len(tokens) and tokens[value][0] == ":":
            value += 1
        last = end_of_value(tokens, value)
        body = body_within(tokens, value, last)
        yield FieldSpan(name[0], name.start(), tokens[value].start(), tokens[last].end(), body)
        place = last + 1


def end_of_value(tokens: list[re.Match[str]], first: int) -> int:
    """The index of the last token of a value that begins at `first`. Texts side by side are one value."""
    if tokens[first][0] not in OPENING:
        last = first
        while last + 1 < len(tokens) and tokens[first][0][0] in "\"'" and tokens[last + 1][0][0] in "\"'":
            last += 1
        return last
    depth = 0
    for index in range(first, len(tokens)):
        depth += (tokens[index][0] in OPENING) - (tokens[index][0] in CLOSING)
        if depth == 0:
            return index
    return len(tokens) - 1


def body_within(tokens: list[re.Match[str]], first: int, last: int) -> tuple[int, int] | None:
    start = first + (tokens[first][0] == "[")
    if start >= last or tokens[start][0] not in ("{", "<"):
        return None
    return tokens[start].end(), tokens[end_of_value(tokens, start)].start()
