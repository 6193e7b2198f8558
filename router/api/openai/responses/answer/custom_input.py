"""The text for a custom tool, read from the JSON of a call as it grows."""

from __future__ import annotations

import json
import re

from slipstream.router.api.openai.responses.body.tool_fields import INPUT

OPENING = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class CustomInput:
    """Takes the arguments of a call in pieces of any size. Their form is `{"input": "text"}`; arguments of another form
    are taken as the text itself at their end, as there is no telling what the model meant."""

    __slots__ = ("_is_open", "_is_over", "_pending", "_raw", "_surrogate", "text")

    def __init__(self) -> None:
        self.text = ""  # so far
        self._raw = ""
        self._pending = ""  # the beginning of an escape
        self._surrogate = ""  # the first half of a pair
        self._is_open = False
        self._is_over = False

    def add(self, fragment: str) -> str:
        """The text that became certain."""
        if self._is_over:
            return ""
        if not self._is_open:
            self._raw += fragment
            opening = OPENING.match(self._raw)
            if opening is None:
                return ""
            self._is_open = True
            fragment = self._raw[opening.end() :]
        made = self._decoded(fragment)
        self.text += made
        return made

    def finish(self) -> str:
        """End the arguments. Returns what was held back."""
        if self._is_open:
            return ""
        whole = whole_input(self._raw)
        self.text = whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no half of a pair
        return self.text

    def _decoded(self, fragment: str) -> str:
        data, self._pending = self._pending + fragment, ""
        made: list[str] = []
        at = 0
        while at < len(data):
            end = next_special(data, at)
            if end > at:
                self._flush(made)
                made.append(data[at:end])
            if end == len(data):
                break
            if data[end] == '"':
                self._is_over = True
                break
            escape = data[end : end + 6] if data[end + 1 : end + 2] == "u" else data[end : end + 2]
            if len(escape) < 2 or (escape[1] == "u" and len(escape) < 6):
                self._pending = data[end:]
                break
            self._add_escape(escape, made)
            at = end + len(escape)
        if self._is_over:
            self._flush(made)
        return "".join(made)

    def _add_escape(self, escape: str, made: list[str]) -> None:
        if escape[1] != "u":
            self._flush(made)
            made.append(ESCAPES.get(escape[1], escape[1]))
            return
        try:
            unit = chr(int(escape[2:], 16))
        except ValueError:
            self._flush(made)
            made.append(escape)
            return
        if self._surrogate and "\udc00" <= unit <= "\udfff":
            made.append((self._surrogate + unit).encode("utf-16", "surrogatepass").decode("utf-16"))
            self._surrogate = ""
            return
        self._flush(made)
        if "\ud800" <= unit <= "\udbff":
            self._surrogate = unit
        else:
            made.append(unit if not "\udc00" <= unit <= "\udfff" else "\ufffd")

    def _flush(self, made: list[str]) -> None:
        """Half a pair that stays alone is no character."""
        if self._surrogate:
            self._surrogate = ""
            made.append("\ufffd")


def next_special(data: str, at: int) -> int:
    """Where the next backslash or quote is, or the end."""
    ends = [place for place in (data.find("\\", at), data.find('"', at)) if place >= 0]
    return min(ends, default=len(data))


def whole_input(arguments: str) -> str:
    """The text in arguments of another form: the only string of an object, or all of it."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict):
        inner = value.get(INPUT, next(iter(value.values()), None) if len(value) == 1 else None)
        if isinstance(inner, str):
            return inner
    return value if isinstance(value, str) else arguments
