"""RPCs about the server and its models: health, metadata, configuration, statistics."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.grpc.messages.model_messages import model_config, model_metadata
from slipstream.router.api.kserve.grpc.messages.statistics_message import statistics_message
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.kserve.server_facts import EXTENSIONS, SERVER_VERSION


class ModelRpcs:
    """All methods raise InferError."""

    def __init__(self, server: KServeServer) -> None:
        self._service = server.service
        self._repository = server.repository
        self._name = server.name

    def server_live(self, _: service_pb2.ServerLiveRequest) -> service_pb2.ServerLiveResponse:
        return service_pb2.ServerLiveResponse(live=True)

    def server_ready(self, _: service_pb2.ServerReadyRequest) -> service_pb2.ServerReadyResponse:
        return service_pb2.ServerReadyResponse(ready=self._repository.is_server_ready())

    def model_ready(self, request: service_pb2.ModelReadyRequest) -> service_pb2.ModelReadyResponse:
        return service_pb2.ModelReadyResponse(ready=self._service.is_ready(request.name, request.version))

    def server_metadata(self, _: service_pb2.ServerMetadataRequest) -> service_pb2.ServerMetadataResponse:
        return service_pb2.ServerMetadataResponse(name=self._name, version=SERVER_VERSION, extensions=EXTENSIONS)

    def model_metadata(self, request: service_pb2.ModelMetadataRequest) -> service_pb2.ModelMetadataResponse:
        return model_metadata(self._service.spec_of(request.name, request.version))

    def model_config(self, request: service_pb2.ModelConfigRequest) -> service_pb2.ModelConfigResponse:
        return model_config(self._service.spec_of(request.name, request.version))

    def model_statistics(self, request: service_pb2.ModelStatisticsRequest) -> service_pb2.ModelStatisticsResponse:
        return statistics_message(self._service.statistics(request.name, request.version))
