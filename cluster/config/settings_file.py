"""A settings file in YAML: its contents, and the line of each key."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Key = tuple[str, ...]

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 8  # of keys whose lines are noted
MAX_NODES = 100_000  # with every alias written out


class ConfigError(Exception):
    """The configuration is wrong. `problems` are the mistakes, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class SettingsFile:
    path: Path
    settings: dict[str, Any]
    lines: dict[Key, int]

    @classmethod
    def read(cls, path: Path, known: Collection[str], needed: str = "model.path") -> SettingsFile:
        """Reads a file. Raises ConfigError, also if none of its keys resembles a `known` one. If no key is `needed`,
        the file may be empty and its keys are not checked."""
        text = read_text(path)
        try:
            with _loader_of(text) as loader:
                node = loader.get_single_node()
                if node is None and not needed:
                    return cls(path, {}, {})
                mapping = _checked_mapping(path, node, needed)
                lines = _lines_of_keys(path, mapping)
                if needed and _is_foreign(lines, known):
                    raise ConfigError([f"{path}: none of its keys is a setting; at least {needed} is needed"])
                return cls(path, loader.construct_document(mapping), lines)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{path}:{mark.line + 1}" if mark else f"{path}"
            raise ConfigError([f"{where}: not valid YAML: {error.problem or error.context}"]) from None
        except yaml.YAMLError as error:
            raise ConfigError([f"{path}: not valid YAML: {' '.join(str(error).split())}"]) from None
        except RecursionError:
            raise ConfigError([f"{path}: nested too deep"]) from None
        except ValueError as error:  # e.g. the date 2026-99-99
            raise ConfigError([f"{path}: {error}"]) from None

    def place(self, key: Key) -> str:
        """`FILE:LINE: dotted.key`, with the line of the nearest enclosing key that is in the file."""
        line = next((self.lines[at] for at in _enclosing(key) if at in self.lines), None)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        return f"{where}: {'.'.join(key)}" if key else where


def _enclosing(key: Key) -> Iterator[Key]:
    """Where a setting may be given, the nearest place first. One of a pool's engine may be in the engine of the model,
    or of the cluster."""
    at_engine = key.index("engine") if "engine" in key[:-1] else 0
    for length in range(len(key), 0, -1):
        if length == at_engine:
            yield (*key[: length - 1], *key[length:])
            yield key[length:]
        yield key[:length]


@contextmanager
def _loader_of(text: str) -> Iterator[yaml.SafeLoader]:
    """A loader for the text. Raises yaml.YAMLError for a character that YAML does not allow."""
    loader = yaml.SafeLoader(text)
    try:
        yield loader
    finally:
        loader.dispose()


def read_text(path: Path) -> str:
    """The text of a settings file, with its line ends as they are. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)  # the size in the file system is no help: devices have none
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError([f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB, which no configuration is"])
        return content.decode()
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from None
    except ValueError as error:  # a zero byte in the name
        raise ConfigError([f"{str(path)!r}: {error}"]) from None


def _checked_mapping(path: Path, node: yaml.Node | None, needed: str) -> yaml.MappingNode:
    """The node of a file's settings. Raises ConfigError if it is something else, or grows without end when its aliases
    are written out."""
    if node is None:
        raise ConfigError([f"{path}: empty; at least {needed} is needed"])
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError([f"{path}: must be a mapping of settings, got {_yaml_kind(node)}"])
    if _num_nodes(node, {}) > MAX_NODES:
        raise ConfigError([f"{path}: more than {MAX_NODES} values, which no configuration has"])
    cycle = _cycle(node, (), [])
    if cycle is not None:
        key, line = cycle
        raise ConfigError([f"{path}:{line}: {'.'.join(key)}: an alias of what it stands in, without end"])
    return node


def _lines_of_keys(path: Path, node: yaml.MappingNode) -> dict[Key, int]:
    """The line of each key. Raises ConfigError if one is given twice."""
    lines: dict[Key, int] = {}
    duplicates = [
        f"{path}:{line}: {'.'.join(key)}: given twice (first in line {lines[key]})"
        for key, line in _keys(node, (), lines)
    ]
    if duplicates:
        raise ConfigError(duplicates)
    return lines


def _is_foreign(lines: dict[Key, int], known: Collection[str]) -> bool:
    """Whether this is a file of some other program, whose keys should not be quoted in error messages."""
    names = [key[0] for key in lines if len(key) == 1]
    return bool(names) and not any(difflib.get_close_matches(name, known, n=1) for name in names)


def _keys(node: yaml.MappingNode, at: Key, lines: dict[Key, int]) -> Iterator[tuple[Key, int]]:
    """Notes the line of every key below `node`; yields the keys that occur a second time."""
    for key_node, value in node.value:
        key = (*at, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key in lines:
            yield key, line
            continue
        lines[key] = line
        yield from _keys_below(value, key, lines)


def _keys_below(value: yaml.Node, key: Key, lines: dict[Key, int]) -> Iterator[tuple[Key, int]]:
    if len(key) > MAX_DEPTH:
        return
    if isinstance(value, yaml.MappingNode):
        yield from _keys(value, key, lines)
    elif isinstance(value, yaml.SequenceNode):
        for position, element in enumerate(value.value):
            element_key = (*key, str(position))
            lines[element_key] = element.start_mark.line + 1
            yield from _keys_below(element, element_key, lines)


def _num_nodes(node: yaml.Node, counted: dict[int, int]) -> int:
    """The number of nodes of `node` and all below it, with aliases written out. If a node contains itself, its content
    is counted once."""
    if id(node) not in counted:
        counted[id(node)] = 1
        below: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        counted[id(node)] = 1 + sum(_num_nodes(part, counted) for part in below)
    return counted[id(node)]


def _cycle(node: yaml.Node, at: Key, above: list[yaml.Node]) -> tuple[Key, int] | None:
    """The first key whose value contains itself, and its line."""
    above = [*above, node]
    parts: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        parts = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, where, value in parts:
        if any(value is one for one in above):
            return (*at, name), where.start_mark.line + 1
        found = _cycle(value, (*at, name), above)
        if found is not None:
            return found
    return None


def _yaml_kind(node: yaml.Node) -> str:
    """The kind of a node, for messages that must not show its value: an operator may name any file that the driver can
    read, including one with a key or a token."""
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
