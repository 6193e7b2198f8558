"""Tasks of the event loop that run beside others and end with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], name: str | None = None) -> AsyncIterator[None]:
    """Runs `work` as a task until the context is left, which raises what it has failed with."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. If it had failed before, its exception is raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
