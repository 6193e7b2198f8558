"""The module of a backend, by its name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from slipstream.router.tensors.backend_packages import needs_package
from slipstream.workers.backends.backend import BackendError

FOLDERS = {"fil": "trees"}  # of others: their name
FUNCTIONS = ("complete", "load")


def backend_module(name: str, file: str = "") -> ModuleType:
    """It has the functions of `Backend`. `file` is its code; "": it is Slipstream's own. Raises BackendError if there
    is no such backend, or a package is missing that it needs; and what a backend's file raises that is imported."""
    return module_of_file(name, Path(file)) if file else own_module(name)


def own_module(name: str) -> ModuleType:
    """Raises BackendError."""
    package = f"slipstream.workers.backends.{FOLDERS.get(name, name)}"
    try:
        return importlib.import_module(f"{package}.backend")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if package.startswith(missing) or missing.startswith(package):
            raise BackendError(f"unable to find backend library for backend '{name}'", "INVALID_ARG") from error
        raise BackendError(needs_package(name, missing), "UNAVAILABLE") from error


def module_of_file(name: str, file: Path) -> ModuleType:
    """Modules beside the file can be imported by it, behind all others. Nothing is written there."""
    module_name = f"slipstream_backend_{name}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    sys.dont_write_bytecode = True
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    if not file.is_file():
        raise BackendError(f"backend '{name}': there is no file {file} on this host", "UNAVAILABLE")
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)  # as its dataclasses expect
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    absent = [function for function in FUNCTIONS if not callable(getattr(module, function, None))]
    if absent:
        raise BackendError(f"backend '{name}': {file} has no function '{absent[0]}'", "INVALID_ARG")
    return module
