"""A deployment's YAML file, read strictly: every mistake is one sentence with file, line, key, reason and value."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import types
import typing
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.model_dir import check_model_dir
from slipstream.cluster.model_repository import NoSuchVersion, version_folder
from slipstream.cluster.operator.token import read_token
from slipstream.cluster.planner.load import load_planner
from slipstream.router.access.key_file import KeyFileError, read_keys
from slipstream.router.http.tls import ServerTls
from slipstream.workers.models.config import ModelConfig
from slipstream.workers.models.json_keys import ModelError

Key = tuple[str, ...]

MAX_FILE_BYTES = 1 << 20
MAX_ROUNDS = 64


class ConfigError(Exception):
    """`problems`: one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load_config(path: Path) -> ClusterConfig:
    """Reads and checks a file. `model.path` is relative to the file and comes back absolute. Raises ConfigError."""
    raw, lines = _read(path)
    config = _validated(path, raw, lines)
    named = Path(os.path.normpath(path.resolve().parent / os.path.expanduser(config.model.path)))
    asked = None if config.model.version is None else str(config.model.version)
    try:
        model_dir, version = version_folder(named, asked)
    except NoSuchVersion as error:
        raise ConfigError([f"{_place(path, lines, ('model', 'version'))}: {error}"]) from None
    problem = check_model_dir(model_dir)
    found: list[tuple[Key, str]] = [(("model", "path"), problem)] if problem else list(_check_model(model_dir, config))
    name = config.model.name or named.name
    model = dataclasses.replace(config.model, path=str(model_dir), name=name, version=version)
    config = dataclasses.replace(config, model=model)
    config = _with_absolute_paths(config, path.resolve().parent)
    for key, check in (
        (("router", "access", "keys_file"), _check_keys),
        (("router", "access", "usage_file"), _check_usage),
        (("router", "http", "tls", "cert_file"), _check_tls),
        (("operator", "token_file"), _check_token),
        (("planner", "class_name"), _check_planner),
    ):
        problem = check(config)
        if problem:
            found.append((key, problem))
    if found:
        raise ConfigError([f"{_place(path, lines, key)}: {problem}" for key, problem in found])
    return config


def _with_absolute_paths(config: ClusterConfig, folder: Path) -> ClusterConfig:
    """Files that the router reads are named relative to the configuration, whatever folder the router runs in."""

    def absolute(name: str | None) -> str | None:
        return None if name is None else os.path.normpath(folder / os.path.expanduser(name))

    access, tls = config.router.access, config.router.http.tls
    access = dataclasses.replace(access, keys_file=absolute(access.keys_file), usage_file=absolute(access.usage_file))
    tls = dataclasses.replace(tls, cert_file=absolute(tls.cert_file), key_file=absolute(tls.key_file))
    http = dataclasses.replace(config.router.http, tls=tls)
    operator = dataclasses.replace(config.operator, token_file=absolute(config.operator.token_file))
    router = dataclasses.replace(config.router, access=access, http=http)
    return dataclasses.replace(config, router=router, operator=operator)


def _check_keys(config: ClusterConfig) -> str | None:
    name = config.router.access.keys_file
    try:
        keys = read_keys(Path(name)) if name is not None else []
    except KeyFileError as error:
        return str(error)
    return None if name is None or keys else f"{name}: no key is in it, so nobody could use the cluster"


def _check_usage(config: ClusterConfig) -> str | None:
    name = config.router.access.usage_file
    folder = Path(name).parent if name is not None else None
    if folder is None or folder.is_dir():
        return None
    return f"{name}: there is no folder {folder}"


def _check_token(config: ClusterConfig) -> str | None:
    try:
        read_token(config.operator)
    except ValueError as error:
        return str(error)
    return None


def _check_planner(config: ClusterConfig) -> str | None:
    try:
        if config.planner.class_name is not None:
            load_planner(config.planner)
    except ValueError as error:
        return str(error).removeprefix("class_name: ")
    return None


def _check_tls(config: ClusterConfig) -> str | None:
    try:
        if config.router.http.tls.is_on:
            ServerTls(config.router.http.tls)
    except ValueError as error:
        return str(error)
    return None


def _check_model(model_dir: Path, config: ClusterConfig) -> Iterator[tuple[Key, str]]:
    """What is wrong with the model's own configuration, or with what the pools ask of it."""
    try:
        model = ModelConfig.read(model_dir)
    except ModelError as error:
        yield ("model", "path"), str(error)
        return
    for role, pool in config.pools():
        for what in ("num_heads", "num_kv_heads", "intermediate_size"):
            count = getattr(model, what)
            if count % pool.tp:
                yield (role, "tp"), f"must divide the model's {what} = {count}, got {pool.tp}"
                break
        longest = model.max_position_embeddings
        if (pool.engine.max_model_len or 0) > longest:
            reason = f"must be at most the model's {longest} positions, got {pool.engine.max_model_len}"
            yield (role, "engine", "max_model_len"), reason


def _read(path: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    """The file's mapping and the line of every key."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)  # not by the size that the file says: devices have none
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError([f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB, which no configuration is"])
        text = content.decode()
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from None
    except ValueError as error:  # a zero byte in the name
        raise ConfigError([f"{str(path)!r}: {error}"]) from None
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError([f"{path}: empty; at least model.path is needed"])
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError([f"{path}: must be a mapping of settings, got {_yaml_kind(node)}"])
        lines: dict[Key, int] = {}
        cycle = _cycle(node, (), [])
        if cycle is not None:
            key, line = cycle
            raise ConfigError([f"{path}:{line}: {'.'.join(key)}: an alias of what it stands in, without end"])
        duplicates = [
            f"{path}:{line}: {'.'.join(key)}: given twice (first in line {lines[key]})"
            for key, line in _keys(node, (), lines)
        ]
        if duplicates:
            raise ConfigError(duplicates)
        if _is_foreign(lines):
            raise ConfigError([f"{path}: none of its keys is a setting; at least model.path is needed"])
        raw = loader.construct_document(node)
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
    finally:
        loader.dispose()
    return raw, lines


def _is_foreign(lines: dict[Key, int]) -> bool:
    """Whether this is a file of something else, whose keys are nobody's business here."""
    names, known = [key[0] for key in lines if len(key) == 1], _settings_at(())
    return bool(names) and not any(difflib.get_close_matches(name, known, n=1) for name in names)


def _keys(node: yaml.MappingNode, at: Key, lines: dict[Key, int]) -> Iterator[tuple[Key, int]]:
    """Notes the line of every key below `node`; yields the keys that stand there a second time."""
    for key_node, value in node.value:
        key = (*at, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key in lines:
            yield key, line
            continue
        lines[key] = line
        if isinstance(value, yaml.MappingNode) and len(at) < 8:
            yield from _keys(value, key, lines)


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
    """Not the value: an operator may name any file that the driver can read, a key or a token among them."""
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _validated(path: Path, raw: dict[str, Any], lines: dict[Key, int]) -> ClusterConfig:
    """Raises ConfigError with every mistake there is. A dataclass names only its first one, and none as long as a part
    of it is wrong: so what is wrong is left out and the rest looked at again."""
    problems: list[str] = []
    left_out: set[Key] = set()
    for _ in range(MAX_ROUNDS):
        try:
            config = _validate(raw)
        except ValidationError as error:
            found = [e for e in _one_a_key(error.errors()) if _key_of(e) not in left_out]
            problems += [_sentence(path, lines, e) for e in found]
            left_out.update(map(_key_of, found))
            rest = raw
            for e in found:
                rest = _without(rest, _key_of(e))
            if rest == raw:
                break
            raw = rest
        except (TypeError, ValueError) as error:  # a value that JSON does not know: a date, a set, binary
            problems.append(f"{path}: {error}")
            break
        else:
            if not problems:
                return config
            break
    raise ConfigError(problems)


def _without(raw: dict[str, Any], key: Key) -> dict[str, Any]:
    """A copy that lacks what stands at the key; the same if nothing does."""
    name = next((name for name in raw if str(name) == key[0]), None) if key else None
    if name is None:
        return raw
    if len(key) == 1:
        return {other: value for other, value in raw.items() if other != name}
    inner = raw[name]
    return {**raw, name: _without(inner, key[1:])} if isinstance(inner, dict) else raw


def _validate(raw: dict[str, Any]) -> ClusterConfig:
    adapter = TypeAdapter(ClusterConfig)
    # By way of JSON: only there does pydantic's strict mode (no "8000", no `true` for 1) build dataclasses.
    shared = adapter.validate_json(_json({k: v for k, v in raw.items() if k not in ("prefill", "decode")}), strict=True)
    merged = dict(raw)
    for role in ("prefill", "decode"):
        pool = raw.get(role)
        pool = {} if pool is None else pool
        if isinstance(pool, dict) and isinstance(pool.get("engine", {}), dict):
            engine = {**dataclasses.asdict(shared.engine), **pool.get("engine", {})}
            merged[role] = {**pool, "engine": engine}
    return adapter.validate_json(_json(merged), strict=True)


def _json(raw: dict[Hashable, Any] | dict[str, Any]) -> str:
    def unknown(value: object) -> object:
        raise ValueError(f"{value} is a {type(value).__name__}, which no setting is; put it in quotes")

    # A section without content (`ray:` and nothing below) reads as null and means the defaults.
    sections = {k for k, v in typing.get_type_hints(ClusterConfig).items() if dataclasses.is_dataclass(v)}
    return json.dumps({str(k): v for k, v in raw.items() if not (v is None and k in sections)}, default=unknown)


def _one_a_key(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """A value that may be of several kinds is wrong once for each; pydantic names the kind below the key."""
    merged: dict[tuple[int | str, ...], ErrorDetails] = {}
    for number, error in enumerate(errors):
        loc = error["loc"]
        parent = tuple(str(part) for part in loc[:-1])
        if len(parent) < 2 or _settings_at(parent) or parent[-1] not in _settings_at(parent[:-1]):
            merged[(number,)] = error
        elif loc[:-1] in merged:
            merged[loc[:-1]]["msg"] += " or " + error["msg"].removeprefix("Input should be ")
        else:
            merged[loc[:-1]] = {**error, "loc": loc[:-1]}
    return list(merged.values())


def _key_of(error: ErrorDetails) -> Key:
    """Where the mistake is. Of what a dataclass says as a whole, the first word is the name of the key."""
    key = tuple(str(part) for part in error["loc"])
    if error["type"] != "value_error":
        return key
    name = error["msg"].removeprefix("Value error, ").partition(" ")[0]
    is_key = tuple(name.split(".")) != (name,) or name in _settings_at(key)
    return (*key, *name.split(".")) if is_key else key


def _sentence(path: Path, lines: dict[Key, int], error: ErrorDetails) -> str:
    key = tuple(str(part) for part in error["loc"])
    kind = error["type"]
    if kind == "unexpected_keyword_argument":
        known = _settings_at(key[:-1])
        close = difflib.get_close_matches(key[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{_place(path, lines, key)}: unknown setting; {hint}"
    if kind in ("missing", "missing_argument"):
        return f"{_place(path, lines, key)}: missing"
    if kind == "value_error":
        # Raised by a dataclass as a whole; its sentence begins with the name of the key and ends with the value.
        reason = error["msg"].removeprefix("Value error, ")
        named = _key_of(error)
        return f"{_place(path, lines, named)}: {reason if named == key else reason.partition(' ')[2]}"
    reason = error["msg"].removeprefix("Input ").replace("should be", "must be", 1)
    reason = reason[:1].lower() + reason[1:]
    return f"{_place(path, lines, key)}: {reason}, got {_shown(error['input'])}"


def _place(path: Path, lines: dict[Key, int], key: Key) -> str:
    """`FILE:LINE: dotted.key`, with the line of the nearest enclosing key that is really in the file."""
    line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), None)
    if line is None and key[:-1] and key[0] in ("prefill", "decode") and key[1] == "engine":
        line = lines.get(key[1:])
    where = f"{path}:{line}" if line else f"{path}"
    return f"{where}: {'.'.join(key)}" if key else where


def _settings_at(key: Key) -> list[str]:
    """The settings that exist at a place, `()` being the top."""
    at: Any = ClusterConfig
    for part in key:
        at = typing.get_type_hints(at).get(part)
        if isinstance(at, types.UnionType):
            at = next(t for t in at.__args__ if t is not types.NoneType)
        if not dataclasses.is_dataclass(at):
            return []
    return [f.name for f in dataclasses.fields(at)]


def _shown(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
