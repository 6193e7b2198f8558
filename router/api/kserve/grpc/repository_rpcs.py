"""RPCs of the repository extension."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import IndexEntry, RepositoryControl

FILE = "file:"  # before the path of a file of a load


class RepositoryRpcs:
    """All methods raise InferError."""

    def __init__(self, repository: RepositoryControl) -> None:
        self._repository = repository

    def index(self, request: service_pb2.RepositoryIndexRequest) -> service_pb2.RepositoryIndexResponse:
        _refuse_repository(request.repository_name)
        entries = self._repository.index(only_ready=request.ready)
        return service_pb2.RepositoryIndexResponse(models=[_model_index(entry) for entry in entries])

    async def load(self, request: service_pb2.RepositoryModelLoadRequest) -> service_pb2.RepositoryModelLoadResponse:
        _refuse_repository(request.repository_name)
        config_json = ""
        files: dict[str, bytes] = {}
        for name, parameter in request.parameters.items():
            if name == "config":
                _expect(f"load parameter '{name}'", parameter, "string_param")
                config_json = parameter.string_param
            elif name.startswith(FILE):
                _expect(f"load parameter '{name}'", parameter, "bytes_param")
                files[name.removeprefix(FILE)] = parameter.bytes_param
            else:
                raise InferError(f"unrecognized load parameter '{name}'.")
        await self._repository.load(request.model_name, config_json, files or None)
        return service_pb2.RepositoryModelLoadResponse()

    async def unload(
        self, request: service_pb2.RepositoryModelUnloadRequest
    ) -> service_pb2.RepositoryModelUnloadResponse:
        _refuse_repository(request.repository_name)
        with_dependents = False
        for name, parameter in request.parameters.items():
            if name == "unload_dependents":
                _expect(f"'{name}' parameter", parameter, "bool_param")
                with_dependents = parameter.bool_param
        await self._repository.unload(request.model_name, with_dependents=with_dependents)
        return service_pb2.RepositoryModelUnloadResponse()


def _refuse_repository(name: str) -> None:
    if name:
        raise InferError("'repository_name' specification is not supported", InferErrorCode.UNSUPPORTED)


def _expect(what: str, parameter: service_pb2.ModelRepositoryParameter, kind: str) -> None:
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InferError(f"invalid value type for {what}, expected {kind}.")


def _model_index(entry: IndexEntry) -> service_pb2.RepositoryIndexResponse.ModelIndex:
    state = entry.phase.value if entry.phase is not None else ""
    return service_pb2.RepositoryIndexResponse.ModelIndex(
        name=entry.name, version=entry.version, state=state, reason=entry.reason
    )
