"""Makes the extensions that the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from slipstream.router.extensions.extension import Extension

GROUP = "slipstream.extensions"  # of entry points


def load_extensions(config: Mapping[str, Mapping[str, Any] | None]) -> list[Extension]:
    """In the order of the configuration: a name is that of an installed entry point, or `module:Class`. Raises
    ValueError that names the key."""
    return [_made(name, settings or {}) for name, settings in config.items()]


def _made(name: str, settings: Mapping[str, Any]) -> Extension:
    made = _class_of(name)
    if not (isinstance(made, type) and issubclass(made, Extension)):
        raise ValueError(f"extensions: {name} is no subclass of {Extension.__module__}.Extension, but {made!r}")
    try:
        return made(settings)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"extensions.{name}: {error}") from error


def _class_of(name: str) -> Any:
    module_name, separator, class_name = name.partition(":")
    if separator:
        try:
            return getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"extensions: {name} cannot be imported: {error}") from error
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none is installed"
        raise ValueError(f"extensions: there is no {name!r} ({known}); module:Class names a class directly")
    try:
        return next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"extensions: {name} cannot be imported: {error}") from error
