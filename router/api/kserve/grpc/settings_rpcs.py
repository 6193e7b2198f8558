"""RPCs of the trace and logging extensions."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.log_control import FORMATS
from slipstream.router.tensors.infer_error import InferError

LOG_TYPES = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


class SettingsRpcs:
    """All methods raise InferError."""

    def __init__(self, server: KServeServer) -> None:
        self._service = server.service
        self._traces = server.traces
        self._logs = server.logs
        self._keep_settings = server.keep_settings

    async def trace_setting(self, request: service_pb2.TraceSettingRequest) -> service_pb2.TraceSettingResponse:
        """A setting without a value becomes what it was at first."""
        model = request.model_name
        if model and not self._service.is_ready(model):
            raise InferError(f"Request for unknown model : {model}")
        if request.settings:
            self._traces.update({name: _trace_value(name, each) for name, each in request.settings.items()}, model)
            await self._keep_settings()
        value = service_pb2.TraceSettingResponse.SettingValue
        shown = self._traces.shown(model)
        return service_pb2.TraceSettingResponse(settings={name: value(value=texts) for name, texts in shown.items()})

    async def log_settings(self, request: service_pb2.LogSettingsRequest) -> service_pb2.LogSettingsResponse:
        if request.settings:
            self._logs.update({name: _log_value(name, each) for name, each in request.settings.items()})
            await self._keep_settings()
        response = service_pb2.LogSettingsResponse()
        for name, value in self._logs.shown().items():
            setattr(response.settings[name], LOG_TYPES[name][0], value)
        return response


def _trace_value(name: str, setting: service_pb2.TraceSettingRequest.SettingValue) -> object:
    """A list of levels, the one value of another setting, or None. Raises InferError."""
    values = list(setting.value)
    if not values:
        return None
    if name == "trace_level":
        return values
    if len(values) > 1:
        raise InferError(f"expect only 1 value for '{name}'")
    return values[0]


def _log_value(name: str, setting: service_pb2.LogSettingsRequest.SettingValue) -> object:
    if name not in LOG_TYPES:
        return None
    kind, expected = LOG_TYPES[name]
    if setting.WhichOneof("parameter_choice") != kind:
        raise InferError(f"expect {expected} for '{name}'")
    value: object = getattr(setting, kind)
    if name == "log_format" and value not in FORMATS:  # over HTTP it has other words
        raise InferError(f"invalid argument for {name}, got: {value}")
    return value
