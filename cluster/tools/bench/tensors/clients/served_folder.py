"""A repository that is served in this process for a benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from slipstream.cluster.in_process.interface.errors import TritonError
from slipstream.cluster.in_process.interface.kinds import ModelControlMode
from slipstream.cluster.in_process.server import Server
from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.tensors.clients.in_process_client import InProcessInferClient


@asynccontextmanager
async def served_folder(
    repository: str, model: str, version: str, timeout_s: float
) -> AsyncIterator[InProcessInferClient]:
    """Serves one model of a repository, with those that it needs, while the context is open. Raises BenchError."""
    server = Server(model_repository=repository, model_control_mode=ModelControlMode.EXPLICIT, startup_models=[model])
    try:
        await asyncio.to_thread(server.start, True)
    except (TritonError, TypeError) as error:
        raise BenchError(f"{repository}: {error}") from None
    try:
        yield InProcessInferClient(server, model, version, timeout_s)
    finally:
        with suppress(TritonError):  # requests that Ctrl-C has cut off
            await asyncio.to_thread(server.stop)
