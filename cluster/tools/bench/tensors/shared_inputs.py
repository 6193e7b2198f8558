"""Inputs in system shared memory, so that requests name a place instead of having the bytes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory

from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferClient, SharedPlace
from slipstream.cluster.tools.bench.tensors.tensor_data import Inputs

ALIGNMENT = 64


@asynccontextmanager
async def in_shared_memory(
    client: InferClient, streams: Sequence[Sequence[Inputs]]
) -> AsyncIterator[list[list[Inputs]]]:
    """The same requests with their inputs in one region, which the server knows while the context is open. Raises
    BenchError."""
    sizes = [-(-len(one.data) // ALIGNMENT) * ALIGNMENT for stream in streams for inputs in stream for one in inputs]
    memory = SharedMemory(create=True, size=max(sum(sizes), 1))
    view = memory.buf
    assert view is not None
    region = f"slipstream-bench-{os.getpid()}"
    try:
        offset, placed = 0, []
        for stream in streams:
            requests: list[Inputs] = []
            for inputs in stream:
                made = []
                for one in inputs:
                    view[offset : offset + len(one.data)] = one.data
                    made.append(replace(one, place=SharedPlace(region, offset)))
                    offset += -(-len(one.data) // ALIGNMENT) * ALIGNMENT
                requests.append(made)
            placed.append(requests)
        await client.register(region, f"/{memory.name.lstrip('/')}", memory.size)
        try:
            yield placed
        finally:
            await client.unregister(region)
    finally:
        view.release()
        memory.close()
        memory.unlink()
