"""Renames settings in a configuration file in place. Only the keys themselves are replaced, so that comments, order and
layout stay."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES
from pathlib import Path

import yaml

from slipstream.cluster.config.former_names import former_keys, with_new_keys
from slipstream.cluster.config.setting_errors import settings_at
from slipstream.cluster.config.settings_file import ConfigError, Key, SettingsFile, read_text

MERGE = "tag:yaml.org,2002:merge"  # `<<: *anchor`: the keys of another mapping, at this level


def rewrite(path: Path) -> list[str]:
    """Gives each setting in the file its present name. Returns a sentence for each that had a former one; if there are
    none, the file is not touched. Raises ConfigError if it is not a configuration, or cannot be written."""
    old = SettingsFile.read(path, settings_at(()))
    new, _ = with_new_keys(old)
    names = dict(former_keys())
    text = read_text(path)
    root = yaml.compose(text, yaml.SafeLoader)
    assert root is not None
    by_place = {node.end_mark.index: (key, node) for key, node in _key_nodes(root, ()) if key in names}
    found = [by_place[index] for index in sorted(by_place)]  # once each, even where aliases repeat them
    for key, node in reversed(found):
        end = node.end_mark.index - (node.style is not None)  # the closing quote is part of the token
        begin = end - len(key[-1])
        if text[begin:end] == key[-1]:
            text = text[:begin] + names[key] + text[end:]
    if repr(_settings(text)) != repr(new.settings):  # e.g. an escaped letter, or an alias as a key
        raise ConfigError([f"{old.place(key)}: must be renamed to {names[key]} by hand" for key, _ in found])
    if found:
        _replace(path.resolve(), text)
    return [f"{old.place(key)} is now {'.'.join((*key[:-1], names[key]))}" for key, _ in found]


def _key_nodes(node: yaml.Node, at: Key) -> Iterator[tuple[Key, yaml.ScalarNode]]:
    """All keys in a tree of mappings, with their nodes."""
    for key_node, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key_node.tag == MERGE:
            for merged in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                yield from _key_nodes(merged, at)
        elif isinstance(key_node, yaml.ScalarNode):
            yield (*at, key_node.value), key_node
            yield from _key_nodes(value, (*at, key_node.value))


def _settings(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _replace(path: Path, text: str) -> None:
    """Replaces the file atomically, with its mode and, where that is allowed, its owner."""
    temporary = None
    try:
        if not path.stat().st_mode & 0o222:
            raise PermissionError(EACCES, "it is read-only")
        number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(number, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, temporary)
        with suppress(PermissionError):
            os.chown(temporary, path.stat().st_uid, path.stat().st_gid)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise ConfigError([f"{path} cannot be written: {error.strerror or error}"]) from None
