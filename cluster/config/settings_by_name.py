"""Settings as a driver sends them to the processes that it starts: by the names of their fields.

Ray would pickle a dataclass with slots as the list of its fields, in their order. But during an upgrade of Slipstream a
process may be newer than the driver that starts it, or older after a step back: then fields that only one side knows
are left out, or get their defaults. A renamed field is sent under both names.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, NamedTuple, TypeVar, cast

from slipstream.cluster.config.former_names import FORMER_NAMES

T = TypeVar("T")


class ByName(NamedTuple, Generic[T]):
    """An object of the dataclass `cls`; dataclasses in its fields are in this form, too."""

    cls: type[T]
    fields: dict[str, Any]


def by_name(settings: T) -> ByName[T]:
    """The form in which a dataclass is sent."""
    assert dataclasses.is_dataclass(settings)
    cls = cast(type[T], type(settings))
    fields = {field.name: _sent(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    return ByName(cls, fields | {former: fields[name] for former, name in FORMER_NAMES.get(cls, {}).items()})


def settings_of(sent: ByName[T]) -> T:
    """The dataclass. Raises TypeError if the sender did not know a field that has no default, and ValueError if it
    does not take a value."""
    known = {field.name for field in dataclasses.fields(cast(Any, sent.cls))}
    former = FORMER_NAMES.get(sent.cls, {})
    fields = {former[name]: value for name, value in sent.fields.items() if name in former} | sent.fields
    return sent.cls(**{name: _received(value) for name, value in fields.items() if name in known})


def _sent(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return by_name(value)
    return tuple(map(_sent, value)) if type(value) is tuple else value


def _received(value: Any) -> Any:
    if isinstance(value, ByName):
        return settings_of(value)
    return tuple(map(_received, value)) if type(value) is tuple else value
