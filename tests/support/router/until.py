"""Waits for what a test cannot be woken by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 20.0


async def until(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    """Looks again and again until it is so. Raises TimeoutError after `DEADLINE_S`."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)
