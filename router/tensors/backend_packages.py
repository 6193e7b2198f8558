"""The packages that backends compute with: optional extras of Slipstream."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

EXTRAS: Mapping[str, str] = {"onnxruntime": "onnx", "openvino": "openvino", "fil": "trees"}
PACKAGES: Mapping[str, tuple[str, ...]] = {  # any one of them
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "fil": ("xgboost", "lightgbm", "sklearn"),
}


def missing_package(backend: str) -> str:
    """What this environment lacks for a backend, and how to get it; "" if nothing."""
    packages = PACKAGES.get(backend, ())
    if not packages or any(find_spec(package) is not None for package in packages):
        return ""
    return needs_package(backend, " or ".join(packages))


def needs_package(backend: str, package: str) -> str:
    extra = EXTRAS.get(backend)
    remedy = f": pip install 'slipstream[{extra}]'" if extra else ""
    return f"backend '{backend}' needs the package {package}, which is not installed{remedy}"
