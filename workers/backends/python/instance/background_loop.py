"""The event loop on which an `async def execute` runs. It has a thread of its own and runs between executions, too, so
that tasks which the model starts go on."""

from __future__ import annotations

import asyncio
import traceback
from concurrent.futures import Future
from threading import Thread
from typing import Any, Callable


class BackgroundLoop:
    """`log_failure` gets the text of a coroutine's exception that no one awaits."""

    def __init__(self, log_failure: Callable[[str], None]) -> None:
        self._log_failure = log_failure
        self._loop = asyncio.new_event_loop()
        self._running: set[Future[Any]] = set()
        asyncio.set_event_loop(self._loop)
        Thread(target=self._loop.run_forever, name="async execute", daemon=True).start()

    def run(self, coroutine: Any, in_background: bool) -> Any:
        """What the coroutine returns; in the background: None, at once."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if not in_background:
            return future.result()
        self._running.add(future)
        future.add_done_callback(self._finished)
        return None

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _finished(self, future: Future[Any]) -> None:
        self._running.discard(future)
        exception = None if future.cancelled() else future.exception()
        if exception is not None:
            lines = traceback.format_exception(type(exception), exception, exception.__traceback__)
            self._log_failure("".join(lines))
