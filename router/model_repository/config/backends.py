"""Backends and platforms, and which of them a model is for that does not say."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError

LANGUAGE_BACKENDS = ("vllm", "tensorrtllm")  # whose models are served by workers, not by instances
ENSEMBLE = "ensemble"  # a platform without a backend
EXECUTED_BY_INSTANCES = frozenset({"python", "onnxruntime", "pytorch", "openvino", "fil"})


@dataclass(frozen=True, slots=True)
class KnownBackend:
    """`platforms`: those that a configuration may name beside it, the first is the default; none: any will do.
    `model_file` is the file in a version's folder; a model that names neither backend nor platform is for the backend
    whose file it has."""

    name: str
    model_file: str
    platforms: tuple[str, ...] = ()


# In the order in which a version's folder is searched.
BACKENDS = {
    backend.name: backend
    for backend in (
        KnownBackend("tensorflow", "model.savedmodel", ("tensorflow_savedmodel", "tensorflow_graphdef")),
        KnownBackend("tensorrt", "model.plan", ("tensorrt_plan",)),
        KnownBackend("onnxruntime", "model.onnx", ("onnxruntime_onnx",)),
        KnownBackend("openvino", "model.xml"),
        KnownBackend("pytorch", "model.pt", ("pytorch_libtorch", "torch_aoti")),
        KnownBackend("python", "model.py"),
    )
}
FILE_OF_PLATFORM = {"tensorflow_graphdef": "model.graphdef", "torch_aoti": "model.pt2"}  # of others: their backend's
BACKEND_OF_PLATFORM = {platform: backend for backend in BACKENDS.values() for platform in backend.platforms}


def complete_backend(config: ModelConfig, version_files: Collection[str]) -> None:
    """Sets backend, platform and the name of the model's file as far as they are missing. `version_files` are the
    names in a version's folder. Raises ModelConfigError."""
    if not config.backend:
        backend = _backend_of(config, version_files)
        if backend is not None:
            config.backend = backend.name
    backend = BACKENDS.get(config.backend)
    if backend is not None:
        if not config.platform:
            config.platform = _default_platform(config, backend, version_files)
        if not config.default_model_filename:
            config.default_model_filename = FILE_OF_PLATFORM.get(config.platform, backend.model_file)
    elif not config.backend and not config.platform and not config.default_model_filename:
        _complete_from_name(config)


def backend_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    if config.platform == ENSEMBLE and config.backend:
        text = f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE}' and empty backend type"
        yield ConfigFault("backend", text)
    elif config.platform != ENSEMBLE and not config.backend:
        yield ConfigFault("platform", f"unexpected platform type '{config.platform}' for {config.name}")
    backend = BACKENDS.get(config.backend)
    if backend is not None and backend.platforms and config.platform not in backend.platforms:
        text = f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}"
        yield ConfigFault("platform", text)


def _backend_of(config: ModelConfig, version_files: Collection[str]) -> KnownBackend | None:
    if config.platform:
        return BACKEND_OF_PLATFORM.get(config.platform) or _backend_with_file([config.default_model_filename])
    return _backend_with_file([config.default_model_filename] if config.default_model_filename else version_files)


def _backend_with_file(names: Collection[str]) -> KnownBackend | None:
    for backend in BACKENDS.values():
        files = {backend.model_file} | {FILE_OF_PLATFORM[p] for p in backend.platforms if p in FILE_OF_PLATFORM}
        if not files.isdisjoint(names):
            return backend
    return None


def _default_platform(config: ModelConfig, backend: KnownBackend, version_files: Collection[str]) -> str:
    names = [config.default_model_filename] if config.default_model_filename else version_files
    for platform in backend.platforms:
        if FILE_OF_PLATFORM.get(platform) in names and backend.model_file not in names:
            return platform
    return backend.platforms[0] if backend.platforms else ""


def _complete_from_name(config: ModelConfig) -> None:
    """`model.NAME` is for the backend NAME."""
    _, dot, backend = config.name.partition(".")
    if not dot:
        text = (
            f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
        raise ModelConfigError(ConfigFault("backend", text))
    config.backend = backend
    config.default_model_filename = f"model.{backend}"
