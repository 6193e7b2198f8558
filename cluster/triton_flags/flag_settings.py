"""The configuration that flags of Triton's server stand for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slipstream.cluster.triton_flags.flag import FlagError, FlagValue
from slipstream.cluster.triton_flags.flag_table import BY_NAME, FLAGS

Settings = dict[str, Any]
BACKEND_SETTINGS = (  # that have an effect
    "python,python-runtime",
    "default-max-batch-size",
    "onnxruntime,default-max-batch-size",
    "onnxruntime,intra_op_thread_count",
    "onnxruntime,inter_op_thread_count",
    "openvino,default-max-batch-size",
    "fil,default-max-batch-size",
    "fil,num_threads",
)
OWN_BACKENDS = ("python", "onnxruntime", "pytorch", "openvino", "fil")  # of others, any setting may have an effect
LATENCIES = ("counter_latencies", "summary_latencies", "histogram_latencies")
GRPC_RESTRICTION = "triton-grpc-protocol-"  # before the header's name that a flag gives
TRACE_SETTINGS = {
    "level": "trace_level",
    "rate": "trace_rate",
    "count": "trace_count",
    "mode": "trace_mode",
    "triton,file": "trace_file",
    "triton,log-frequency": "log_frequency",
}


def settings_of(given: Mapping[str, Sequence[FlagValue]]) -> Settings:
    """The settings, nested as in a file. `given` has the values of each flag, in the order in which they came. Raises
    FlagError."""
    settings: Settings = {}
    for name, values in given.items():
        flag, value = BY_NAME[name], values[-1]
        if flag.refused and value is not False:
            raise FlagError(f"--{name}: {flag.refused}")
        if flag.setting:
            _put(settings, flag.setting, flag.scaled(value))
    for name, understand in COMPOSITE.items():
        for value in given.get(name, ()):
            understand(settings, f"--{name}", value)
    _put_grpc_tls(settings, {name: values[-1] for name, values in given.items()})
    _drop_load_models(settings)
    return settings


def remarks_about(given: Mapping[str, Sequence[FlagValue]]) -> Iterator[str]:
    """Sentences about flags that are accepted and have no effect."""
    for flag in FLAGS:
        if flag.name in given and flag.without_effect:
            yield f"--{flag.name} has no effect: {flag.without_effect}"
    if "load-model" in given and given.get("model-control-mode", ("none",))[-1] != "explicit":
        yield "--load-model has no effect: it needs --model-control-mode=explicit"
    for value in map(str, given.get("backend-config", ())):
        setting = value.partition("=")[0].strip()
        is_further = "backend-directory" in given and setting.partition(",")[0] not in OWN_BACKENDS
        if setting not in BACKEND_SETTINGS and not is_further:
            yield f"--backend-config {setting} has no effect: no backend here has this setting"


def _put(settings: Settings, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def _append(settings: Settings, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings.setdefault(name, []).append(value)


def _put_path(settings: Settings, flag: str, value: FlagValue) -> None:
    _append(settings, "repository.paths", value)


def _put_load_model(settings: Settings, flag: str, value: FlagValue) -> None:
    _append(settings, "repository.load_models", value)


def _drop_load_models(settings: Settings) -> None:
    """Triton ignores --load-model in the other control modes."""
    repository = settings.get("repository", {})
    if repository.get("control_mode", "none") != "explicit":
        repository.pop("load_models", None)


def _put_no_completion(settings: Settings, flag: str, value: FlagValue) -> None:
    if value:
        _put(settings, "repository.auto_complete", False)


def _put_no_grpc(settings: Settings, flag: str, value: FlagValue) -> None:
    if not value:
        _put(settings, "repository.grpc.port", None)


def _put_no_metrics(settings: Settings, flag: str, value: FlagValue) -> None:
    if not value:
        _put(settings, "repository.metrics.port", None)


def _put_metrics_config(settings: Settings, flag: str, value: FlagValue) -> None:
    """`SETTING=VALUE`."""
    name, given = _split(flag, str(value), "=", "SETTING=VALUE")
    if name in LATENCIES:
        _put(settings, f"repository.metrics.{name}", _truth(flag, given))
    elif name == "summary_quantiles":
        pairs = [[_number(flag, part) for part in pair.split(":")] for pair in given.split(",")]
        if any(len(pair) != 2 for pair in pairs):
            raise FlagError(f"{flag}: summary_quantiles must be QUANTILE:ERROR,..., got {given!r}")
        _put(settings, "repository.metrics.summary_quantiles", pairs)
    else:
        known = ", ".join((*LATENCIES, "summary_quantiles"))
        raise FlagError(f"{flag}: must set one of {known}, got {name!r}")


def _put_cache_config(settings: Settings, flag: str, value: FlagValue) -> None:
    """`local,size=BYTES`."""
    cache, rest = _split(flag, str(value), ",", "local,size=BYTES")
    name, size = _split(flag, rest, "=", "local,size=BYTES")
    if cache != "local" or name != "size":
        raise FlagError(f"{flag}: must be local,size=BYTES, got {value!r}")
    _put(settings, "repository.cache_bytes", int(_number(flag, size)))


def _put_rate_limit_resource(settings: Settings, flag: str, value: FlagValue) -> None:
    """`NAME:COUNT` or `NAME:COUNT:DEVICE`."""
    parts = str(value).split(":")
    if len(parts) not in (2, 3) or not parts[0] or not parts[1].isdecimal():
        raise FlagError(f"{flag}: must be NAME:COUNT or NAME:COUNT:DEVICE, got {value!r}")
    device = {"device": parts[2]} if len(parts) == 3 else {}
    _append(settings, "repository.rate_limit_resources", {"name": parts[0], "count": int(parts[1]), **device})


def _put_backend_config(settings: Settings, flag: str, value: FlagValue) -> None:
    """`BACKEND,SETTING=VALUE`, or `SETTING=VALUE` for all backends."""
    name, given = _split(flag, str(value), "=", "BACKEND,SETTING=VALUE")
    backend, separator, setting = name.rpartition(",")
    if not setting or (separator and not backend):
        raise FlagError(f"{flag}: must be BACKEND,SETTING=VALUE, got {value!r}")
    of_backends = settings.setdefault("repository", {}).setdefault("backend_config", {})
    of_backends.setdefault(backend, {})[setting] = given


def _put_trace_config(settings: Settings, flag: str, value: FlagValue) -> None:
    """`SETTING=VALUE` or `MODE,SETTING=VALUE`."""
    name, given = _split(flag, str(value), "=", "MODE,SETTING=VALUE")
    if name == "opentelemetry,url":
        _put(settings, "router.tracing.otlp_endpoint", given)
    elif name in TRACE_SETTINGS:
        _put_trace(settings, TRACE_SETTINGS[name], given)
    elif not name.startswith("opentelemetry,"):  # others say how spans are batched there
        raise FlagError(f"{flag}: must set one of {', '.join(TRACE_SETTINGS)} or opentelemetry,url, got {name!r}")


def _put_trace_flag(settings: Settings, flag: str, value: FlagValue) -> None:
    _put_trace(settings, flag.removeprefix("--").replace("-", "_").replace("trace_log", "log"), str(value))


def _put_trace(settings: Settings, name: str, value: str) -> None:
    """Levels may be given one by one."""
    trace = settings.setdefault("repository", {}).setdefault("trace", {})
    trace[name] = f"{trace[name]},{value}" if name == "trace_level" and name in trace else value


def _put_http_restriction(settings: Settings, flag: str, value: FlagValue) -> None:
    _append(settings, "repository.http.restricted", _restriction(flag, str(value)))


def _put_grpc_restriction(settings: Settings, flag: str, value: FlagValue) -> None:
    """Over gRPC the flag has the end of the header's name."""
    restriction = _restriction(flag, str(value))
    restriction["header"] = f"{GRPC_RESTRICTION}{restriction['header']}"
    _append(settings, "repository.grpc.restricted", restriction)


def _restriction(flag: str, value: str) -> Settings:
    """`API,...:HEADER=VALUE`."""
    form = "API,...:HEADER=VALUE"
    apis, rest = _split(flag, value, ":", form)
    header, secret = _split(flag, rest, "=", form)
    return {"apis": [api.strip() for api in apis.split(",")], "header": header, "value": secret}


def _put_grpc_tls(settings: Settings, given: Mapping[str, FlagValue]) -> None:
    """Files count only where TLS is on."""
    is_mutual = bool(given.get("grpc-use-ssl-mutual"))
    if not (is_mutual or given.get("grpc-use-ssl")):
        return
    for name, key in (("grpc-server-cert", "cert_file"), ("grpc-server-key", "key_file")):
        if name not in given:
            raise FlagError(f"--{name}: missing beside --grpc-use-ssl")
        _put(settings, f"repository.grpc.tls.{key}", given[name])
    if is_mutual:
        if "grpc-root-cert" not in given:
            raise FlagError("--grpc-root-cert: missing beside --grpc-use-ssl-mutual")
        _put(settings, "repository.grpc.tls.client_ca_file", given["grpc-root-cert"])


def _split(flag: str, value: str, separator: str, form: str) -> tuple[str, str]:
    first, found, second = value.partition(separator)
    if not found or not first or not second:
        raise FlagError(f"{flag}: must be {form}, got {value!r}")
    return first.strip(), second.strip()


def _truth(flag: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise FlagError(f"{flag}: must be true or false, got {value!r}")
    return value.lower() in ("true", "1")


def _number(flag: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise FlagError(f"{flag}: must be a number, got {value!r}") from None


# Flags whose value has parts, or that stand for something else.
COMPOSITE: Mapping[str, Callable[[Settings, str, FlagValue], None]] = {
    "model-repository": _put_path,
    "model-store": _put_path,
    "load-model": _put_load_model,
    "disable-auto-complete-config": _put_no_completion,
    "strict-model-config": _put_no_completion,
    "allow-grpc": _put_no_grpc,
    "allow-metrics": _put_no_metrics,
    "metrics-config": _put_metrics_config,
    "cache-config": _put_cache_config,
    "rate-limit-resource": _put_rate_limit_resource,
    "backend-config": _put_backend_config,
    "trace-config": _put_trace_config,
    "trace-file": _put_trace_flag,
    "trace-level": _put_trace_flag,
    "trace-rate": _put_trace_flag,
    "trace-count": _put_trace_flag,
    "trace-log-frequency": _put_trace_flag,
    "http-restricted-api": _put_http_restriction,
    "grpc-restricted-protocol": _put_grpc_restriction,
}
