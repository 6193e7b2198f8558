"""The options of a program as settings of the router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError, UnsupportedError
from slipstream.cluster.in_process.interface.options import Options
from slipstream.cluster.triton_flags.flag import FlagError, FlagValue
from slipstream.cluster.triton_flags.flag_settings import settings_of
from slipstream.router.config.repository_config import RepositoryConfig

NO_CLIENTS: Mapping[str, Any] = {"http": {"enabled": False}, "grpc": {"port": None}}
NEVER_S = 1e9  # the repository is polled when the program says so

TEXTS = ("server_id", "cache_directory", "backend_directory", "repo_agent_directory")
NUMBERS = ("exit_timeout", "model_load_thread_count", "model_load_retry_count", "metrics_interval", "log_verbose")
SWITCHES = (
    "strict_model_config",
    "exit_on_error",
    "strict_readiness",
    "model_namespacing",
    "gpu_metrics",
    "cpu_metrics",
)


def repository_config(options: Options) -> RepositoryConfig:
    """Raises TypeError, InvalidArgumentError, UnsupportedError."""
    check_types(options)
    if not repositories_of(options):
        raise InvalidArgumentError("Model repository must be specified.")
    if options.model_namespacing:
        raise UnsupportedError("model_namespacing: a name stands for one model in all repositories")
    try:
        settings = settings_of(flags_of(options)).get("repository", {})
        metrics = {**settings.pop("metrics", {}), "port": None}
        chosen = {**settings, **NO_CLIENTS, "metrics": metrics, "poll_s": NEVER_S}
        return TypeAdapter(RepositoryConfig).validate_python(chosen)
    except FlagError as error:
        raise InvalidArgumentError(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidArgumentError(f"{place}: {first['msg']}, got {first['input']!r}") from None


def check_types(options: Options) -> None:
    """Raises TypeError for values that no check of the settings would understand."""
    for names, kind in ((TEXTS, str), (NUMBERS, int), (SWITCHES, bool)):
        for name in names:
            value = getattr(options, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {value!r}")
    for path in repositories_of(options):
        if not isinstance(path, str):
            raise TypeError(f"model_repository must be of type str or a list of them, got {path!r}")


def repositories_of(options: Options) -> Sequence[str]:
    given = options.model_repository
    if given is None:
        return ()
    return list(given) if isinstance(given, list | tuple) else [given]


def flags_of(options: Options) -> dict[str, list[FlagValue]]:
    """The options as the flags of Triton's server with the same meaning."""
    flags: dict[str, list[FlagValue]] = {
        "model-repository": list(repositories_of(options)),
        "id": [options.server_id],
        "model-control-mode": [options.model_control_mode.name.lower()],
        "load-model": list(options.startup_models),
        "strict-model-config": [options.strict_model_config],
        "rate-limit": ["execution_count" if options.rate_limiter_mode else "off"],
        "rate-limit-resource": [f"{one.name}:{one.count}:{one.device}" for one in options.rate_limiter_resources],
        "exit-on-error": [options.exit_on_error],
        "strict-readiness": [options.strict_readiness],
        "model-load-thread-count": [options.model_load_thread_count],
        "model-load-retry-count": [options.model_load_retry_count],
        "allow-gpu-metrics": [options.metrics and options.gpu_metrics],
        "allow-cpu-metrics": [options.metrics and options.cpu_metrics],
        "metrics-interval-ms": [options.metrics_interval],
        "metrics-config": [f"{name}={value}" for name, value in pairs(options.metrics_configuration)],
        "backend-directory": [options.backend_directory],
        "backend-config": [f"{name}={value}" for name, value in pairs(options.backend_configuration)],
        "cache-config": [f"{name}={value}" for name, value in pairs(options.cache_config)],
        "log-verbose": [options.log_verbose],
    }
    return {name: values for name, values in flags.items() if values}


def pairs(sections: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """`{section: {name: value}}` as (`section,name`, value); the section "" is left out."""
    return [
        (f"{section},{name}" if section else name, value)
        for section, settings in sections.items()
        for name, value in settings.items()
    ]
