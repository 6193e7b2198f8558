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

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from slipstream.router.access.api_key import ApiKey, Rates
from slipstream.router.access.entry_list import KeyFileError, add_entry, parse_entries, read_entries, remove_entry

MAX_NAME_CHARS = 128
NAME = re.compile(r"[A-Za-z0-9._@/+-]+( [A-Za-z0-9._@/+-]+)*")  # names occur in logs, URLs and labels of metrics
SHA256 = re.compile(r"[0-9a-f]{64}")
FIELDS = (
    *("name", "sha256", "tenant", "weight", "requests_per_minute", "tokens_per_minute", "max_concurrent"),
    *("max_priority", "models", "admin", "expires", "shared_cache", "limits"),
)
RATES = ("requests_per_minute", "tokens_per_minute", "max_concurrent")


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in a file. Raises KeyFileError if it is broken or cannot be read."""
    return read_entries(path, parse_keys)


def parse_keys(text: str) -> list[ApiKey]:
    """The keys in the text of a file. Raises KeyFileError if it is broken."""
    keys = [_key(number, entry) for number, entry in enumerate(parse_entries(text, "keys"))]
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
    return add_entry(text, "keys", entry, parse_keys)


def remove_key(text: str, name: str) -> str:
    """The file's text without the key called `name`. Raises KeyFileError if there is no such key."""
    return remove_entry(text, "keys", name, parse_keys)


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
