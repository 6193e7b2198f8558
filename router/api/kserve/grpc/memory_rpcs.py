"""RPCs of the extensions for shared memory. There is none of CUDA's."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.tensor_memory.client_regions import ClientRegion
from slipstream.router.tensors.infer_error import InferError, InferErrorCode


class MemoryRpcs:
    """All methods raise InferError."""

    def __init__(self, server: KServeServer) -> None:
        self._regions = server.client_regions
        self._keep_settings = server.keep_settings

    def system_status(
        self, request: service_pb2.SystemSharedMemoryStatusRequest
    ) -> service_pb2.SystemSharedMemoryStatusResponse:
        regions = self._regions.status(request.name)
        return service_pb2.SystemSharedMemoryStatusResponse(regions={each.name: _status(each) for each in regions})

    async def system_register(
        self, request: service_pb2.SystemSharedMemoryRegisterRequest
    ) -> service_pb2.SystemSharedMemoryRegisterResponse:
        if not request.name:  # which would be all regions to the other calls
            raise InferError(f"Invalid shared memory region: '{request.key}'", InferErrorCode.INTERNAL)
        self._regions.register(request.name, request.key, request.offset, request.byte_size)
        await self._keep_settings()
        return service_pb2.SystemSharedMemoryRegisterResponse()

    async def system_unregister(
        self, request: service_pb2.SystemSharedMemoryUnregisterRequest
    ) -> service_pb2.SystemSharedMemoryUnregisterResponse:
        self._regions.unregister(request.name)
        await self._keep_settings()
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    def cuda_status(self, _: service_pb2.CudaSharedMemoryStatusRequest) -> service_pb2.CudaSharedMemoryStatusResponse:
        return service_pb2.CudaSharedMemoryStatusResponse()

    def cuda_register(
        self, request: service_pb2.CudaSharedMemoryRegisterRequest
    ) -> service_pb2.CudaSharedMemoryRegisterResponse:
        raise InferError(f"failed to register shared memory region '{request.name}': CUDA memory is not supported")

    def cuda_unregister(
        self, _: service_pb2.CudaSharedMemoryUnregisterRequest
    ) -> service_pb2.CudaSharedMemoryUnregisterResponse:
        return service_pb2.CudaSharedMemoryUnregisterResponse()


def _status(region: ClientRegion) -> service_pb2.SystemSharedMemoryStatusResponse.RegionStatus:
    return service_pb2.SystemSharedMemoryStatusResponse.RegionStatus(
        name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
    )
