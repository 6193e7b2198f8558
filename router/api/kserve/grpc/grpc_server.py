"""The gRPC port of a router that serves a repository. It runs on the router's event loop."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import grpc
import grpc.aio

from slipstream.router.access.access import Access
from slipstream.router.api.kserve.grpc.calls.rpc_access import RpcAccess
from slipstream.router.api.kserve.grpc.departures import ignore_departures
from slipstream.router.api.kserve.grpc.grpc_tls import GrpcTls
from slipstream.router.api.kserve.grpc.inference.infer_acceptor import InferAcceptor
from slipstream.router.api.kserve.grpc.rpc_table import RpcTable
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.config.kserve_config import KServeGrpcConfig
from slipstream.router.observability.tracing.tracer import Tracer
from slipstream.router.tensor_memory.region_pool import RegionPool

MAX_MESSAGE_BYTES = (1 << 31) - 1
COMPRESSION_LEVELS = {"none": 0, "low": 1, "medium": 2, "high": 3}  # `grpc_compression_level`


class GrpcServer:
    """Life cycle: `start`, `drain` (optional), `stop`, all on the router's event loop. `host` is used where the
    configuration has none; large inputs go to `pool`."""

    def __init__(
        self,
        config: KServeGrpcConfig,
        server: KServeServer,
        access: Access,
        pool: RegionPool,
        *,
        host: str,
        tracer: Tracer | None = None,
    ) -> None:
        self._config = config
        self._host = config.host or host
        self._acceptor = InferAcceptor(server, access, pool, config.forward_headers, tracer)
        self._table = RpcTable(server, self._acceptor, RpcAccess(access.keys, config.restricted, server.loaded))
        self._server: grpc.aio.Server | None = None
        self._tls: GrpcTls | None = None
        self._watch: asyncio.Task[None] | None = None  # of the files of its certificate

    @property
    def expires_at_s(self) -> float | None:
        """Its certificate; None: it has none, or does not listen yet."""
        return self._tls.files.expires_at_s if self._tls is not None else None

    async def start(self) -> int:
        """Listens. Returns the port. Raises OSError if it cannot listen, TlsFileError if its certificate cannot be
        used."""
        port = self._config.port or 0
        ignore_departures()
        server = grpc.aio.server(handlers=(self._table,), options=_options(self._config))
        address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        try:
            if self._config.tls.is_on:
                self._tls = GrpcTls(self._config.tls)
                bound = server.add_secure_port(address, self._tls.credentials())
            else:
                bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, f"cannot listen for gRPC at {address}: {error}") from error
        await server.start()
        self._server = server
        if self._tls is not None:
            self._watch = asyncio.create_task(self._tls.files.watch(), name="certificate of gRPC")
        return int(bound)

    async def drain(self, deadline_s: float) -> None:
        """Lets the requests that run end, for at most `deadline_s`. Others are still answered; the service refuses
        them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._acceptor.wait_idle()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Takes no new RPCs from now on, lets those that run end for at most `grace_s`, and then cancels them. Safe to
        call twice."""
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            await self._server.stop(grace_s)


def _options(config: KServeGrpcConfig) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),  # a port that another process has is an error
        ("grpc.keepalive_time_ms", round(config.keepalive_s * 1e3)),
        ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout_s * 1e3)),
        ("grpc.default_compression_level", COMPRESSION_LEVELS[config.compression]),
    ]
    if config.max_connection_age_s is not None:
        options.append(("grpc.max_connection_age_ms", round(config.max_connection_age_s * 1e3)))
    return options
