"""All RPCs: which handler has each, and who may call it."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.grpc.calls.rpc_access import RpcAccess, RpcRights
from slipstream.router.api.kserve.grpc.calls.unary_rpc import Answer, UnaryRpc
from slipstream.router.api.kserve.grpc.health_rpc import HealthRpc
from slipstream.router.api.kserve.grpc.inference.infer_acceptor import SERVICE_NAME, STREAM, UNARY, InferAcceptor
from slipstream.router.api.kserve.grpc.inference.infer_stream import StreamInfer
from slipstream.router.api.kserve.grpc.inference.unary_infer import UnaryInfer
from slipstream.router.api.kserve.grpc.memory_rpcs import MemoryRpcs
from slipstream.router.api.kserve.grpc.model_rpcs import ModelRpcs
from slipstream.router.api.kserve.grpc.repository_rpcs import RepositoryRpcs
from slipstream.router.api.kserve.grpc.settings_rpcs import SettingsRpcs
from slipstream.router.api.kserve.kserve_server import KServeServer

SERVICE = f"/{SERVICE_NAME}/"
HEALTH = RpcRights("health", is_open=True)
READINESS = RpcRights("health")
SERVER_METADATA = RpcRights("metadata")
MODEL_METADATA = RpcRights("metadata", waits=True)
CONFIG = RpcRights("model-config", waits=True)
STATISTICS = RpcRights("statistics", waits=True)
INFERENCE = RpcRights("inference", waits=True)
INDEX = RpcRights("model-repository", is_admin=True)
REPOSITORY = RpcRights("model-repository", is_admin=True, waits=True)
MEMORY = RpcRights("shared-memory", is_admin=True)
TRACE = RpcRights("trace", is_admin=True)
LOGGING = RpcRights("logging", is_admin=True)


class RpcTable(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of an RPC by its path. The handlers take and give bytes."""

    def __init__(self, server: KServeServer, acceptor: InferAcceptor, access: RpcAccess) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler] = {
            f"{SERVICE}{name}": grpc.unary_unary_rpc_method_handler(
                UnaryRpc(request_type, answer, rights, access).handle
            )
            for name, (request_type, answer, rights) in _unary(server).items()
        }
        self._handlers[f"{SERVICE}{UNARY}"] = grpc.unary_unary_rpc_method_handler(
            UnaryInfer(acceptor, INFERENCE, access).handle
        )
        self._handlers[f"{SERVICE}{STREAM}"] = grpc.stream_stream_rpc_method_handler(
            StreamInfer(acceptor, INFERENCE, access).handle
        )
        self._handlers["/grpc.health.v1.Health/Check"] = grpc.unary_unary_rpc_method_handler(
            HealthRpc(server.repository, HEALTH, access).handle
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)


def _unary(server: KServeServer) -> Mapping[str, tuple[type[Message], Answer, RpcRights]]:
    pb = service_pb2
    models = ModelRpcs(server)
    repository = RepositoryRpcs(server.repository)
    memory = MemoryRpcs(server)
    settings = SettingsRpcs(server)
    return {
        "ServerLive": (pb.ServerLiveRequest, models.server_live, HEALTH),
        "ServerReady": (pb.ServerReadyRequest, models.server_ready, HEALTH),
        "ModelReady": (pb.ModelReadyRequest, models.model_ready, READINESS),
        "ServerMetadata": (pb.ServerMetadataRequest, models.server_metadata, SERVER_METADATA),
        "ModelMetadata": (pb.ModelMetadataRequest, models.model_metadata, MODEL_METADATA),
        "ModelConfig": (pb.ModelConfigRequest, models.model_config, CONFIG),
        "ModelStatistics": (pb.ModelStatisticsRequest, models.model_statistics, STATISTICS),
        "RepositoryIndex": (pb.RepositoryIndexRequest, repository.index, INDEX),
        "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, repository.load, REPOSITORY),
        "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, repository.unload, REPOSITORY),
        "SystemSharedMemoryStatus": (pb.SystemSharedMemoryStatusRequest, memory.system_status, MEMORY),
        "SystemSharedMemoryRegister": (pb.SystemSharedMemoryRegisterRequest, memory.system_register, MEMORY),
        "SystemSharedMemoryUnregister": (pb.SystemSharedMemoryUnregisterRequest, memory.system_unregister, MEMORY),
        "CudaSharedMemoryStatus": (pb.CudaSharedMemoryStatusRequest, memory.cuda_status, MEMORY),
        "CudaSharedMemoryRegister": (pb.CudaSharedMemoryRegisterRequest, memory.cuda_register, MEMORY),
        "CudaSharedMemoryUnregister": (pb.CudaSharedMemoryUnregisterRequest, memory.cuda_unregister, MEMORY),
        "TraceSetting": (pb.TraceSettingRequest, settings.trace_setting, TRACE),
        "LogSettings": (pb.LogSettingsRequest, settings.log_settings, LOGGING),
    }
