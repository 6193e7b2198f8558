"""Makes the extensions that the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
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
        raise ValueError(
            f"router.extensions: {name!r} is no subclass of {Extension.__module__}.Extension, but {made!r}"
        )
    try:
        return made(settings)
    except Exception as error:  # code of others
        raise ValueError(f"router.extensions.{name}: {described(error)}") from error


def _class_of(name: str) -> Any:
    module_name, separator, class_name = name.partition(":")
    if separator:
        if not is_importable(module_name) or not class_name.isidentifier():
            raise ValueError(f"router.extensions: {name!r} is no module:Class")
        return _loaded(name, lambda: getattr(importlib.import_module(module_name), class_name))
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none is installed"
        raise ValueError(f"router.extensions: there is no {name!r} ({known}); module:Class names a class directly")
    return _loaded(name, next(iter(found)).load)


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # code of others
        raise ValueError(f"router.extensions: {name!r} cannot be imported: {described(error)}") from error


def is_importable(module_name: str) -> bool:
    """Whether it has the form of an absolute module's name."""
    return all(part.isidentifier() for part in module_name.split("."))


def described(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError | ImportError) else f"{type(error).__name__}: {error}"
