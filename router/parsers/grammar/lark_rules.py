"""Collects the rules of a Lark grammar for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from slipstream.router.protocol.grammar import DEFAULT_JSON, MAX_WHITE_SPACE, json_options

SPACE = "WS?"
WHITE_SPACE = rf"WS: /[ \t\r\n]{{1,{MAX_WHITE_SPACE}}}/"
JSON_OPTIONS = json_options(DEFAULT_JSON)["x-guidance"]
MAX_CHARS = 2 << 20  # each value has all the definitions that it needs, so there may be many times those of the schema
_ESCAPED = frozenset(r"\.+*?()|[]{}^$#&-~/")


class TooLongError(ValueError):
    """A grammar is longer than any that can be followed."""


class LarkRules:
    """Equal rules are one."""

    def __init__(self) -> None:
        self._num_chars = 0  # of JSON schemas, which take most
        self._names: dict[str, str] = {}
        self._recursive: dict[str, str] = {}
        self._bodies: dict[str, str] = {}

    def rule(self, body: str, options: str = "") -> str:
        """The name of a rule with this body."""
        return self._names.setdefault(f"{options}: {body}", f"r{len(self._names)}")

    def recursive(self, key: str, body: Callable[[], str]) -> str:
        """The name of the rule for `key`, whose body may refer to it."""
        name = self._recursive.get(key)
        if name is None:
            name = self._recursive[key] = f"d{len(self._recursive)}"
            self._bodies[name] = body()
        return name

    def terminal(self, body: str) -> str:
        """The name of a terminal: a regular expression, or several with `&`, `|` and `~`."""
        return self._names.setdefault(f": {body}", f"T{len(self._names)}")

    def lazy(self, body: str) -> str:
        """A rule for the shortest text that matches a regular expression."""
        return self.rule(self.terminal(body), "[lazy]")

    def json(self, schema: dict[str, Any], definitions: dict[str, Any]) -> str:
        """A value that a schema allows. It may refer to `#/$defs/NAME`. Raises TooLongError if that makes too much."""
        whole = {**schema, "x-guidance": JSON_OPTIONS}
        if definitions:
            whole["$defs"] = definitions
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        self._num_chars += len(text)
        if self._num_chars > MAX_CHARS:
            raise TooLongError(f"its schemas have more than {MAX_CHARS} characters where each is written out")
        return self.rule("%json " + text)

    def text(self, start: str) -> str:
        """The whole grammar."""
        rules = [f"{name}{body}" for body, name in self._names.items()]
        rules += [f"{name}: {body}" for name, body in self._bodies.items()]
        return "\n".join([f"start: {start}", WHITE_SPACE, *rules, ""])


def either(options: Iterable[str]) -> str:
    """One of several expressions; empty if there is none."""
    listed = list(dict.fromkeys(options))
    if not listed:
        return ""
    return listed[0] if len(listed) == 1 else f"({' | '.join(listed)})"


def sequence(*parts: str) -> str:
    """Expressions one after the other; empty ones are left out."""
    return " ".join(part for part in parts if part)


def escaped(text: str) -> str:
    """A text as a regular expression within slashes."""
    return "".join("\\" + c if c in _ESCAPED else {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(c, c) for c in text)


def name_beside(pattern: str, names: Iterable[str]) -> str:
    """A terminal for names of a pattern other than some."""
    taken = [name for name in names if re.fullmatch(pattern[1:-1], name)]
    return f"{pattern} & ~/({'|'.join(map(escaped, taken))})/" if taken else pattern
