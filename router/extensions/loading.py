"""Makes the extensions that the configuration names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
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
    found = find_extension(name)
    if isinstance(found, EntryPoint):
        return _loaded(name, found.load)
    module_name, class_name = found
    return _loaded(name, lambda: getattr(importlib.import_module(module_name), class_name))


def find_extension(name: str) -> EntryPoint | tuple[str, str]:
    """The entry point, or the names of module and class. Raises ValueError where there is none. A module is looked for
    and not run."""
    module_name, separator, class_name = name.partition(":")
    if not separator:
        found = entry_points(group=GROUP, name=name)
        if not found:
            known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none is installed"
            raise ValueError(f"router.extensions: there is no {name!r} ({known}); module:Class names a class directly")
        return next(iter(found))
    if not is_importable(module_name) or not class_name.isidentifier():
        raise ValueError(f"router.extensions: {name!r} is no module:Class")
    top = module_name.partition(".")[0]
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        raise ValueError(f"router.extensions: {name!r} cannot be imported: there is no module {top!r} on PYTHONPATH")
    return module_name, class_name


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
