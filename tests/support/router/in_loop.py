"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")
TIMEOUT_S = 60.0


def in_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Runs a test on an event loop of its own, for at most `TIMEOUT_S`."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run
