"""Checks a settings file, and reports every mistake in it as one sentence.

A sentence names file, line, key, reason and value: `c.yaml:4: router.http.prot: unknown setting; did you mean port?`
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Hashable, Iterator
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.settings_file import ConfigError, Key, SettingsFile

MAX_ROUNDS = 64
EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,2}")
MAX_NUMBER = 2**31 - 1  # of seconds, MiB or tokens: a larger number is a typo, and overflows where it is used
POOLS = ("prefill", "decode")
SINGLE = ("model", *POOLS)  # the settings of a cluster with a single model
KINDS = {"date": "a date", "datetime": "a time", "bytes": "binary data", "set": "a set"}  # of YAML that JSON has not
NO_AMOUNTS = frozenset({"version", "resources"})  # a name that may look like a date; quantities in units of the user's


def validated(file: SettingsFile) -> ClusterConfig:
    """The checked configuration. Raises ConfigError with all mistakes. A dataclass reports only its first mistake, and
    none while one of its parts is wrong; so whatever is wrong is removed, and the rest is checked again."""
    settings = file.settings
    unusable = list(_unusable(settings))
    problems = [f"{file.place(key)}: {reason}" for key, reason in unusable]
    for key, _ in reversed(unusable):  # from behind, because that moves what follows in a list
        settings = _without(settings, key)
    left_out: set[Key] = set()
    for _ in range(MAX_ROUNDS):
        try:
            config = _validate(settings)
        except ValidationError as error:
            errors = [_as_listed(e) if "models" in file.settings else e for e in error.errors()]
            found = [e for e in _one_a_key(errors) if _key_of(e) not in left_out]
            found = list({_key_of(e): e for e in reversed(found)}.values())[::-1]  # the first one for each key
            if any(key[0] == "repository" for key in left_out):  # then there may be one, so that no model is missing
                found = [e for e in found if _key_of(e) != ("model",)]
            problems += [_sentence(file, e) for e in found]
            left_out.update(map(_key_of, found))
            rest = settings
            for e in found:
                rest = _without(rest, _key_of(e))
            if rest == settings:
                break
            settings = rest
        except (TypeError, ValueError) as error:  # a key that JSON cannot express
            problems.append(f"{file.path}: {error}")
            break
        else:
            if not problems:
                return config
            break
    raise ConfigError(problems)


def _unusable(settings: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    """Numbers that are too large, and what JSON cannot express (a date, a set, binary data), each with what is wrong
    with it."""
    for key, value in _values(settings):
        if not isinstance(value, str | int | float | None):
            kind = KINDS.get(type(value).__name__, "something")
            yield key, f"YAML takes it for {kind}, which no setting is; put it in quotes, got {_shown(value)}"
        elif isinstance(value, int | float) and MAX_NUMBER < abs(value) < math.inf and NO_AMOUNTS.isdisjoint(key):
            yield key, f"must be at most {MAX_NUMBER}, got {_shown(value)}"


def _values(settings: dict[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """All values within sections and lists, each with its key."""
    for name, value in settings.items():
        key = (*at, str(name))
        if isinstance(value, dict):
            yield from _values(value, key)
        elif isinstance(value, list):
            yield from _values({str(position): one for position, one in enumerate(value)}, key)
        else:
            yield key, value


def settings_at(key: Key) -> list[str]:
    """The names of the settings that exist below a key; `()` is the top. Elements of a list are named by number, those
    of a mapping as they are."""
    at = _type_at(key)
    return [f.name for f in dataclasses.fields(at)] if dataclasses.is_dataclass(at) else []


def _type_at(key: Key) -> Any:
    """The type of a setting; None for what holds no settings."""
    at: Any = ClusterConfig
    for part in key:
        origin, arguments = typing.get_origin(at), typing.get_args(at)
        if origin is tuple:
            at = arguments[0]
        elif origin is dict:
            at = arguments[1]
        else:
            at = typing.get_type_hints(at).get(part)
        if isinstance(at, types.UnionType):
            at = next(t for t in at.__args__ if t is not types.NoneType)
        if not dataclasses.is_dataclass(at) and typing.get_origin(at) not in (tuple, dict):
            return None
    return at


def _has_entries(key: Key) -> bool:
    """Whether it is a mapping of names to settings."""
    at = _type_at(key)
    return typing.get_origin(at) is dict and dataclasses.is_dataclass(typing.get_args(at)[1])


def _without(raw: dict[str, Any], key: Key) -> dict[str, Any]:
    """A copy without the value at the key; the same object if there is none."""
    name = next((name for name in raw if str(name) == key[0]), None) if key else None
    if name is None:
        return raw
    if len(key) == 1:
        return {other: value for other, value in raw.items() if other != name}
    inner = raw[name]
    if isinstance(inner, list):
        position = int(key[1]) if key[1].isdecimal() else len(inner)
        if position >= len(inner):
            return raw
        left = _without({key[1]: inner[position]}, key[1:])
        changed = [left[key[1]]] if key[1] in left else []
        return {**raw, name: [*inner[:position], *changed, *inner[position + 1 :]]}
    return {**raw, name: _without(inner, key[1:])} if isinstance(inner, dict) else raw


def _validate(raw: dict[str, Any]) -> ClusterConfig:
    adapter = TypeAdapter(ClusterConfig)
    models = raw.get("models")
    if models is not None:
        if (given := next((key for key in SINGLE if key in raw), None)) is not None:
            raise _refusal(given, "must not be given beside models, each of which has its own", raw[given])
        if not isinstance(models, list) or not models:
            raise _refusal("models", "must be a list with at least one model", models)
        raw = {**raw, **_first_of(models)}
    elif "model" not in raw and (given := next((role for role in POOLS if role in raw), None)) is not None:
        raise _refusal(given, "must not be given without a model", raw[given])
    # By way of JSON: only there does pydantic's strict mode (no "8000", no `true` for 1) build dataclasses.
    own = (*POOLS, "models")
    shared = adapter.validate_json(_json({k: v for k, v in raw.items() if k not in own}), strict=True)
    engine = dataclasses.asdict(shared.engine)
    merged = _with_engine(raw, engine)
    if models is not None:
        merged["models"] = [_with_engine(_of_model(one, engine), engine) for one in models]
    return adapter.validate_json(_json(merged), strict=True)


def _refusal(key: str, reason: str, value: object) -> ValidationError:
    error = PydanticCustomError(
        "value_error", "Value error, {reason}", {"reason": f"{key} {reason}, got {_shown(value)}"}
    )
    return ValidationError.from_exception_data("settings", [{"type": error, "loc": (), "input": value}])


def _as_listed(error: ErrorDetails) -> ErrorDetails:
    """A mistake in what is taken from the first model (`_first_of`), under the key that it has in the list."""
    loc = error["loc"]
    if not loc or loc[0] not in SINGLE:
        return error
    return {**error, "loc": ("models", "0", *(loc[1:] if loc[0] == "model" else loc))}


def _first_of(models: list[Any]) -> dict[str, Any]:
    """The first model and its pools, in the form of a cluster that has no other."""
    first = models[0] if isinstance(models[0], dict) else {}
    pools = {role: first[role] for role in POOLS if role in first}
    served = {one.name for one in dataclasses.fields(ServedModelConfig)}
    return {"prefill": {"replicas": 0}, **pools, "model": {key: first[key] for key in served if key in first}}


def _of_model(entry: Any, engine: dict[str, Any]) -> Any:
    """An entry of `models`, with its engine's settings completed by those of the cluster, and its default pools."""
    if not isinstance(entry, dict) or not isinstance(entry.get("engine") or {}, dict):
        return entry
    prefill = entry.get("prefill")
    if isinstance(prefill, dict | None):
        entry = {**entry, "prefill": {"replicas": 1 if prefill else 0, **(prefill or {})}}
    return {**entry, "engine": {**engine, **(entry.get("engine") or {})}}


def _with_engine(raw: Any, engine: dict[str, Any]) -> Any:
    """A cluster or one of its models, with the settings of its pools' engines completed."""
    if not isinstance(raw, dict):
        return raw
    own = raw.get("engine") or {}
    if isinstance(own, dict):
        engine = {**engine, **own}
    merged = dict(raw)
    for role in POOLS:
        pool = raw.get(role)
        pool = {} if pool is None else pool
        if isinstance(pool, dict) and isinstance(pool.get("engine", {}), dict):
            merged[role] = {**pool, "engine": {**engine, **pool.get("engine", {})}}
    return merged


def _json(raw: dict[Hashable, Any] | dict[str, Any]) -> str:
    # A section without content (`ray:` with nothing below it) is null in YAML, and means the defaults.
    sections = {k for k, v in typing.get_type_hints(ClusterConfig).items() if dataclasses.is_dataclass(v)}
    return json.dumps({str(k): v for k, v in raw.items() if not (v is None and k in sections)})


def _one_a_key(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Keeps one error per key. A value that may have several types is reported once for each of them, as pydantic
    appends the type to the key."""
    merged: dict[tuple[int | str, ...], ErrorDetails] = {}
    for number, error in enumerate(errors):
        loc = error["loc"]
        parent = tuple(str(part) for part in loc[:-1])
        is_part = settings_at(parent) or _has_entries(parent)
        if len(parent) < 2 or is_part or parent[-1] not in settings_at(parent[:-1]):
            merged[(number,)] = error
        elif loc[:-1] in merged:
            merged[loc[:-1]]["msg"] += " or " + error["msg"].removeprefix("Input should be ")
        else:
            merged[loc[:-1]] = {**error, "loc": loc[:-1]}
    return list(merged.values())


def _key_of(error: ErrorDetails) -> Key:
    """The key of a mistake. If a dataclass complains as a whole, the first word of its message is the key."""
    key = tuple(str(part) for part in error["loc"])
    if error["type"] != "value_error":
        return key
    name = error["msg"].removeprefix("Value error, ").partition(" ")[0]
    is_key = tuple(name.split(".")) != (name,) or name in settings_at(key)
    return (*key, *name.split(".")) if is_key else key


def _sentence(file: SettingsFile, error: ErrorDetails) -> str:
    key = tuple(str(part) for part in error["loc"])
    kind = error["type"]
    if kind == "unexpected_keyword_argument":
        known = settings_at(key[:-1])
        close = difflib.get_close_matches(key[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{file.place(key)}: unknown setting; {hint}"
    if kind in ("missing", "missing_argument"):
        return f"{file.place(key)}: missing"
    if kind == "value_error":
        # A complaint of a dataclass as a whole: the sentence begins with the key and ends with the value.
        reason = error["msg"].removeprefix("Value error, ")
        named = _key_of(error)
        return f"{file.place(named)}: {reason if named == key else reason.partition(' ')[2]}"
    reason = error["msg"].removeprefix("Input ").replace("should be", "must be", 1)
    reason = reason[:1].lower() + reason[1:]
    meant = _number_in_yaml(error["input"]) if kind == "float_type" else None
    hint = f"; YAML takes that for text, write {meant}" if meant else ""
    return f"{file.place(key)}: {reason}, got {_shown(error['input'])}{hint}"


def _number_in_yaml(value: object) -> str | None:
    """How to write a number like 1e-3 in YAML 1.1 (with a point and a sign), if the value looks like one; else None."""
    if not isinstance(value, str) or not EXPONENT.fullmatch(value):
        return None
    return str(yaml.safe_dump(float(value))).split()[0]


def _shown(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
