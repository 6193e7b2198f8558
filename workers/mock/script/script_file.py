"""Reads the file of `mock-worker --script`:

tokenizer: ../models/slipstream-demo     # a model directory, relative to the file; --tokenizer overrules it
cuts: tokens                             # of all replies: tokens (default) or characters
default: I do not know.                  # what no rule matches
rules:
  - name: weather                        # for messages; else the rule's number
    match: 'weather in (?P<city>\\w+)'
    reply: '<|tool_call|>{"name": "get_weather", "arguments": {"city": "\\g<city>"}}'
  - match: sunny
    reply: ["It is ", "sunny."]          # tokenised one by one
    cuts: characters
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
import yaml

from slipstream.workers.mock.script.script_rule import COUNT, Cuts, Reply, ScriptRule

FILE_KEYS = ("tokenizer", "cuts", "default", "rules")
RULE_KEYS = ("name", "match", "reply", "cuts")
NO_ANSWER = "I do not know."


class ScriptError(ValueError):
    """A script cannot be used. The text is a sentence that names the file, the rule and the key."""


@dataclass(frozen=True, slots=True)
class Script:
    path: Path
    tokenizer: Path | None
    default: Reply
    rules: tuple[ScriptRule, ...]


def read_script(path: Path) -> Script:
    """Raises ScriptError."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScriptError(f"{path}: {error}") from error
    return _ScriptReader(path).script(content)


class _ScriptReader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def script(self, content: Any) -> Script:
        values = self._keys("", content, FILE_KEYS)
        cuts = self._cuts("cuts", values.get("cuts", "tokens"))
        tokenizer = values.get("tokenizer")
        if tokenizer is not None:
            tokenizer = self._path.parent / self._text("tokenizer", tokenizer)
        default = self._reply("default", values.get("default", NO_ANSWER), cuts)
        if used := next(default.references(), None):
            raise self._error("default", f"has no match to take \\g<{used}> from")
        rules = values.get("rules", [])
        if not isinstance(rules, list):
            raise self._error("rules", f"must be a list, got {rules!r}")
        return Script(self._path, tokenizer, default, tuple(self._rule(i, rule, cuts) for i, rule in enumerate(rules)))

    def _rule(self, index: int, content: Any, cuts: Cuts) -> ScriptRule:
        where = f"rules[{index}]"
        values = self._keys(where, content, RULE_KEYS)
        if "name" in values:
            where += f" ({self._text(f'{where}.name', values['name'])})"
        for key in ("match", "reply"):
            if key not in values:
                raise self._error(where, f"has no {key}")
        source = self._text(f"{where}.match", values["match"])
        try:
            pattern = regex.compile(source)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise self._error(f"{where}.match", f"{source!r} is no regular expression: {error}") from error
        cuts = self._cuts(f"{where}.cuts", values.get("cuts", cuts))
        reply = self._reply(f"{where}.reply", values["reply"], cuts)
        for name in reply.references():
            if not (name in pattern.groupindex or name == COUNT or (name.isdecimal() and int(name) <= pattern.groups)):
                there_are = ", ".join((*pattern.groupindex, *map(str, range(pattern.groups + 1)), COUNT))
                raise self._error(f"{where}.reply", f"match has no group {name!r}; there are {there_are}")
        return ScriptRule(where, pattern, reply)

    def _reply(self, where: str, value: Any, cuts: Cuts) -> Reply:
        pieces = value if isinstance(value, list) else [value]
        return Reply(tuple(self._text(where, piece, " or a list of texts") for piece in pieces), cuts)

    def _cuts(self, where: str, value: Any) -> Cuts:
        if value == "tokens":
            return "tokens"
        if value == "characters":
            return "characters"
        raise self._error(where, f"must be tokens or characters, got {value!r}")

    def _text(self, where: str, value: Any, otherwise: str = "") -> str:
        if not isinstance(value, str):
            raise self._error(where, f"must be a text{otherwise}, got {value!r}")
        return value

    def _keys(self, where: str, content: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(content, dict):
            raise self._error(where, f"must have keys and values ({', '.join(known)}), got {content!r}")
        for key in content:
            if key not in known:
                raise self._error(where, f"{key!r} is no key; there are {', '.join(known)}")
        return content

    def _error(self, where: str, problem: str) -> ScriptError:
        return ScriptError(f"{self._path}: {where}: {problem}" if where else f"{self._path}: {problem}")
