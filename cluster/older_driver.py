"""Settings that an older driver sends: during an upgrade of Slipstream, a driver may start processes newer than itself.

Ray pickles dataclasses, and those with slots as the list of their fields. A field that the driver does not know is then
missing altogether. As new settings come last and have defaults, these fill the gap.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")


def completed(settings: T) -> T:
    """The same object, with the defaults of all fields that it or a dataclass in it lacks. Raises TypeError for one
    without a default."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        for field in dataclasses.fields(settings):
            if hasattr(settings, field.name):
                completed(getattr(settings, field.name))
            else:
                object.__setattr__(settings, field.name, _default_of(type(settings), field))
    elif isinstance(settings, tuple):
        for part in settings:
            completed(part)
    return settings


def _default_of(cls: type, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise TypeError(f"{cls.__name__}.{field.name} was sent by no driver, and has no default")
