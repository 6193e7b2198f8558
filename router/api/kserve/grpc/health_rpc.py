"""`grpc.health.v1.Health/Check`, which Kubernetes calls. Its messages have one field each.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import grpc.aio

from slipstream.router.api.kserve.grpc.calls.rpc_access import RpcAccess, RpcRights
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.tensors.infer_service import RepositoryControl

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # `HealthCheckResponse.status`


class HealthRpc:
    """Answers for the whole server, whichever service the request names."""

    def __init__(self, repository: RepositoryControl, rights: RpcRights, access: RpcAccess) -> None:
        self._repository = repository
        self._rights = rights
        self._access = access

    async def handle(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            await self._access.enter(self._rights, context.invocation_metadata() or ())
        except RpcError as error:
            await context.abort(error.code, error.message)
        return SERVING if self._repository.is_server_ready() else NOT_SERVING
