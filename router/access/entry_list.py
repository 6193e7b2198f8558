"""A YAML file with one list, as of API keys: reads it strictly, and adds and removes entries without touching the rest
of its text.

keys:                   # the list's name
  - name: alice         # each entry has a name
    sha256: 5e88...d8
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

MAX_FILE_BYTES = 16 << 20

# libyaml's loader if it is installed: it is ten times as fast, and the file is read while requests are served.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KeyFileError(ValueError):
    """The file is broken. The text is one sentence that names the entry and the field."""


class Entry(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Entry)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Identifies the state of a file: it differs from an earlier one if the file was written or replaced in between."""

    inode: int
    mtime_ns: int
    num_bytes: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """Raises OSError."""
        status = path.stat()
        return cls(status.st_ino, status.st_mtime_ns, status.st_size)


def read_entries(path: Path, parse: Callable[[str], list[T]]) -> list[T]:
    """The entries in a file. Raises KeyFileError if it is broken or cannot be read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise KeyFileError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except KeyFileError as error:
        raise KeyFileError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    except ValueError as error:  # a path that no file can have
        raise KeyFileError(f"{str(path)!r}: {error}") from error


def parse_entries(text: str, list_name: str) -> list[object]:
    """The entries in the text of a file, unchecked. Raises KeyFileError if it is broken."""
    try:
        raw = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KeyFileError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict) or set(raw) != {list_name}:
        raise KeyFileError(f"must be a mapping with the one entry `{list_name}`")
    entries = raw[list_name] or []
    if not isinstance(entries, list):
        raise KeyFileError(f"{list_name}: must be a list")
    return entries


def add_entry(text: str, list_name: str, entry: Mapping[str, Any], parse: Callable[[str], Sequence[Entry]]) -> str:
    """The file's text with one more entry at the end of the list. Raises KeyFileError if the result would be
    broken."""
    text = f"{text.rstrip()}\n"
    parse(text if text.strip() else f"{list_name}: []")
    lines = yaml.safe_dump([dict(entry)], sort_keys=False, allow_unicode=True, width=1000).splitlines()
    node = yaml.compose(text) if text.strip() else None
    listed = _listed(node)
    if listed is None or not listed.value:
        kept = [line for line in text.splitlines() if not re.match(rf"{list_name}\s*:", line)]
        new = "\n".join([*kept, f"{list_name}:", *(f"  {line}" for line in lines)]) + "\n"
    elif listed.flow_style:
        raise _one_line(list_name)
    else:
        all_lines = text.splitlines()
        end = _end_line(listed.value[-1], all_lines)
        indent = " " * listed.start_mark.column
        all_lines[end:end] = [indent + line for line in lines]
        new = "\n".join(all_lines) + "\n"
    parse(new)
    return new


def remove_entry(text: str, list_name: str, name: str, parse: Callable[[str], Sequence[Entry]]) -> str:
    """The file's text without the entry called `name`. Raises KeyFileError if there is no such entry."""
    text = f"{text.rstrip()}\n"
    entries = parse(text)
    at = next((number for number, entry in enumerate(entries) if entry.name == name), None)
    if at is None:
        raise KeyFileError(f"there is no {_singular(list_name)} named {name!r}")
    listed = _listed(yaml.compose(text))
    assert listed is not None
    if listed.flow_style:
        raise _one_line(list_name)
    lines = text.splitlines()
    item = listed.value[at]
    del lines[item.start_mark.line : _end_line(item, lines)]
    if len(entries) == 1:
        lines = [f"{list_name}: []" if re.match(rf"{list_name}\s*:", line) else line for line in lines]
    new = "\n".join(lines) + "\n"
    assert [entry.name for entry in parse(new)] == [entry.name for entry in entries if entry.name != name]
    return new


def _one_line(list_name: str) -> KeyFileError:
    one = _singular(list_name)
    return KeyFileError(f"{list_name}: written in one line with brackets; write one {one} a line to have it edited")


def _singular(list_name: str) -> str:
    return list_name.removesuffix("s")


def edit_file(path: Path, edit: Callable[[str | None], str]) -> None:
    """Replaces a file atomically by what `edit` makes of its text (None: there is none). Other processes that edit it
    this way wait, so that neither a new key nor a removal is lost. Raises OSError, UnicodeDecodeError."""
    path = path.resolve()  # a symbolic link stays one
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the file cannot be locked, as another one takes its place
        _replace(path, edit(path.read_text(encoding="utf-8") if path.exists() else None))
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """A new file can only be read by its owner. One that was there keeps its owner and its mode, or else the router
    might not be able to read it any more."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():
                before, now = path.stat(), os.fstat(descriptor)
                if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _listed(node: yaml.Node | None) -> yaml.SequenceNode | None:
    if not isinstance(node, yaml.MappingNode) or not node.value:
        return None
    value = node.value[0][1]
    return value if isinstance(value, yaml.SequenceNode) else None


def _end_line(item: yaml.CollectionNode, lines: list[str]) -> int:
    """The number of the line after an item. (The parser lets a block end only where the next thing begins.)"""
    end = item.end_mark.line + bool(item.flow_style)
    while not lines[end - 1].split("#")[0].strip():
        end -= 1
    return end
