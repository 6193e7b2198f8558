"""The file of API keys: reads it strictly, and adds and removes keys without touching the rest of its text.

keys:
  - name: alice
    sha256: 5e88...d8        # of the secret, which is nowhere kept
    tenant: research         # default: the name
    weight: 2
    requests_per_minute: 60
    tokens_per_minute: 100000
    max_concurrent: 16
    max_priority: 0
    models: [llama, coder]   # by their names; aliases do not count
    limits:                  # of single models, beside those above, which are for all models together
      coder: {requests_per_minute: 10, tokens_per_minute: 20000, max_concurrent: 2}
    expires: 2027-01-01      # or with a time; without an offset it is UTC
    admin: false
    shared_cache: false
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from slipstream.router.access.api_key import ApiKey, Rates

MAX_FILE_BYTES = 16 << 20
MAX_NAME_CHARS = 128
NAME = re.compile(r"[A-Za-z0-9._@/+-]+( [A-Za-z0-9._@/+-]+)*")  # names occur in logs, URLs and labels of metrics
SHA256 = re.compile(r"[0-9a-f]{64}")
FIELDS = (
    *("name", "sha256", "tenant", "weight", "requests_per_minute", "tokens_per_minute", "max_concurrent"),
    *("max_priority", "models", "admin", "expires", "shared_cache", "limits"),
)
RATES = ("requests_per_minute", "tokens_per_minute", "max_concurrent")

# libyaml's loader if it is installed: it is ten times as fast, and the file is read while requests are served.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class KeyFileError(ValueError):
    """The file is broken. The text is one sentence that names the key and the field."""


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


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in a file. Raises KeyFileError if it is broken or cannot be read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise KeyFileError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        return parse_keys(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except KeyFileError as error:
        raise KeyFileError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    except ValueError as error:  # a path that no file can have
        raise KeyFileError(f"{str(path)!r}: {error}") from error


def parse_keys(text: str) -> list[ApiKey]:
    """The keys in the text of a file. Raises KeyFileError if it is broken."""
    try:
        raw = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KeyFileError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict) or set(raw) != {"keys"}:
        raise KeyFileError("must be a mapping with the one entry `keys`")
    entries = raw["keys"] or []
    if not isinstance(entries, list):
        raise KeyFileError("keys: must be a list")
    keys = [_key(number, entry) for number, entry in enumerate(entries)]
    names: dict[str, ApiKey] = {}
    digests: dict[bytes, str] = {}
    weights: dict[str, ApiKey] = {}
    for key in keys:
        if key.name in names:
            raise KeyFileError(f"keys: the name {key.name!r} is given twice")
        if key.digest in digests:
            raise KeyFileError(f"key {key.name!r}: sha256: the same as of key {digests[key.digest]!r}")
        other = weights.setdefault(key.tenant, key)
        if other.weight != key.weight:
            raise KeyFileError(
                f"key {key.name!r}: weight: {key.weight:g}, but key {other.name!r} of the same tenant has "
                f"{other.weight:g}"
            )
        names[key.name] = key
        digests[key.digest] = key.name
    return keys


def add_key(text: str, entry: Mapping[str, Any]) -> str:
    """The file's text with one more key at the end of the list. Raises KeyFileError if the result would be broken."""
    text = f"{text.rstrip()}\n"
    parse_keys(text if text.strip() else "keys: []")
    lines = yaml.safe_dump([dict(entry)], sort_keys=False, allow_unicode=True, width=1000).splitlines()
    node = yaml.compose(text) if text.strip() else None
    listed = _listed(node)
    if listed is None or not listed.value:
        kept = [line for line in text.splitlines() if not re.match(r"keys\s*:", line)]
        new = "\n".join([*kept, "keys:", *(f"  {line}" for line in lines)]) + "\n"
    elif listed.flow_style:
        raise KeyFileError("keys: written in one line with brackets; write one key a line to have it edited")
    else:
        all_lines = text.splitlines()
        end = _end_line(listed.value[-1], all_lines)
        indent = " " * listed.start_mark.column
        all_lines[end:end] = [indent + line for line in lines]
        new = "\n".join(all_lines) + "\n"
    parse_keys(new)
    return new


def remove_key(text: str, name: str) -> str:
    """The file's text without the key called `name`. Raises KeyFileError if there is no such key."""
    text = f"{text.rstrip()}\n"
    keys = parse_keys(text)
    at = next((number for number, key in enumerate(keys) if key.name == name), None)
    if at is None:
        raise KeyFileError(f"there is no key named {name!r}")
    listed = _listed(yaml.compose(text))
    assert listed is not None
    if listed.flow_style:
        raise KeyFileError("keys: written in one line with brackets; write one key a line to have it edited")
    lines = text.splitlines()
    item = listed.value[at]
    del lines[item.start_mark.line : _end_line(item, lines)]
    if len(keys) == 1:
        lines = ["keys: []" if re.match(r"keys\s*:", line) else line for line in lines]
    new = "\n".join(lines) + "\n"
    assert [key.name for key in parse_keys(new)] == [key.name for key in keys if key.name != name]
    return new


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


def _key(number: int, raw: object) -> ApiKey:
    if not isinstance(raw, dict):
        raise KeyFileError(f"keys[{number}]: must be a mapping")
    where = f"key {raw['name']!r}" if isinstance(raw.get("name"), str) else f"keys[{number}]"
    fields = _Fields(where, raw)
    unknown = [str(name) for name in raw if name not in FIELDS]
    if unknown:
        raise KeyFileError(f"{where}: {unknown[0]}: unknown; known here: {', '.join(FIELDS)}")
    name = fields.name("name")
    digest = raw.get("sha256")
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise KeyFileError(
            f"{where}: sha256: must be 64 hexadecimal digits in lower case, in quotes if they look like a number"
        )
    return ApiKey(
        name=name,
        digest=bytes.fromhex(digest),
        tenant=fields.name("tenant") if "tenant" in raw else name,
        weight=fields.number("weight", 1.0, least=1e-3, most=1e6) or 1.0,
        **asdict(fields.rates()),
        max_priority=fields.integer("max_priority", 0, least=-(2**31)) or 0,
        models=fields.names("models"),
        admin=fields.flag("admin"),
        expires_s=fields.moment("expires"),
        shared_cache=fields.flag("shared_cache"),
        limits=_limits(where, raw.get("limits")),
    )


def _limits(where: str, raw: object) -> dict[str, Rates]:
    """The limits by model."""
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(model, str) and model for model in raw):
        raise KeyFileError(f"{where}: limits: must be a mapping of models to their limits, got {raw!r}")
    limits: dict[str, Rates] = {}
    for model, rates in raw.items():
        place = f"{where}: limits: {model}"
        if not isinstance(rates, dict) or not rates or not set(rates) <= set(RATES):
            raise KeyFileError(f"{place}: must have some of {', '.join(RATES)}, got {rates!r}")
        limits[model] = _Fields(place, rates).rates()
    return limits


@dataclass(frozen=True, slots=True)
class _Fields:
    """Takes the fields of one key, checking their types."""

    where: str
    raw: Mapping[str, Any]

    def _wrong(self, field: str, expected: str) -> KeyFileError:
        return KeyFileError(f"{self.where}: {field}: must be {expected}, got {self.raw.get(field)!r}")

    def name(self, field: str) -> str:
        value = self.raw.get(field)
        if not isinstance(value, str) or not NAME.fullmatch(value) or len(value) > MAX_NAME_CHARS:
            raise self._wrong(field, f"up to {MAX_NAME_CHARS} letters, digits and ._@/+-, with single spaces between")
        return value

    def number(self, field: str, default: float | None, *, least: float, most: float = 1e15) -> float | None:
        value = self.raw.get(field, default)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not least <= value <= most:
            raise self._wrong(field, f"a number from {least:g} to {most:g}")
        return float(value)

    def integer(self, field: str, default: int | None, *, least: int) -> int | None:
        value = self.raw.get(field, default)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            raise self._wrong(field, f"a whole number of at least {least}")
        return value

    def rates(self) -> Rates:
        return Rates(
            self.number("requests_per_minute", None, least=1e-3),
            self.number("tokens_per_minute", None, least=1),
            self.integer("max_concurrent", None, least=1),
        )

    def flag(self, field: str) -> bool:
        value = self.raw.get(field, False)
        if not isinstance(value, bool):
            raise self._wrong(field, "true or false")
        return value

    def names(self, field: str) -> frozenset[str] | None:
        value = self.raw.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            raise self._wrong(field, "a list of model names")
        return frozenset(value)

    def moment(self, field: str) -> float | None:
        value = self.raw.get(field)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise self._wrong(field, "a date, or a date and time, as in 2027-01-31T12:00:00Z") from None
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime):
            raise self._wrong(field, "a date, or a date and time, as in 2027-01-31T12:00:00Z")
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
