"""An RPC with one request and one answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from slipstream.router.api.kserve.grpc.calls.rpc_access import RpcAccess, RpcRights
from slipstream.router.api.kserve.grpc.calls.rpc_error import RpcError
from slipstream.router.api.kserve.grpc.messages.infer_request_message import UNPARSABLE_TEXT
from slipstream.router.tensors.infer_error import InferError

Answer = Callable[[Any], Message | Coroutine[Any, Any, Message]]


class UnaryRpc:
    """Parses the request, lets `answer` answer it, and ends the RPC with the status of what it raises."""

    __slots__ = ("_access", "_answer", "_request_type", "_rights")

    def __init__(self, request_type: type[Message], answer: Answer, rights: RpcRights, access: RpcAccess) -> None:
        self._request_type = request_type
        self._answer = answer
        self._rights = rights
        self._access = access

    async def handle(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            await self._access.enter(self._rights, context.invocation_metadata() or ())
            answer = self._answer(self._request_type.FromString(data))
            message = answer if isinstance(answer, Message) else await answer
        except DecodeError:
            await context.abort(grpc.StatusCode.INTERNAL, UNPARSABLE_TEXT)
        except RpcError as error:
            await context.abort(error.code, error.message)
        except InferError as error:
            refused = RpcError.of(error)
            await context.abort(refused.code, refused.message)
        encoded: bytes = message.SerializeToString()
        return encoded
