"""The order to end a cluster: it comes by a signal, or follows from the death of the guardian."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager


class StopOrder:
    """That the cluster is to end (`given`), and then that it is to end without waiting for requests (`at_once`).

    A person at a terminal waits for the end (SIGINT: Ctrl-C, `slipstream down`). A system that sends SIGTERM may have
    load balancers that go on sending requests for a moment: only then the order `has_grace`."""

    def __init__(self) -> None:
        self.given = asyncio.Event()
        self.at_once = asyncio.Event()
        self.has_grace = True

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While this is open, the first SIGINT or SIGTERM gives the order, and another one makes it urgent."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._received, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _received(self, number: signal.Signals) -> None:
        if self.given.is_set():
            self.at_once.set()
            return
        self.has_grace = number == signal.SIGTERM
        self.given.set()


async def unless(event: asyncio.Event, work: Awaitable[object]) -> bool:
    """Runs `work` unless the event comes first, in which case it is cancelled. Returns whether it ended by itself.
    Raises what `work` raises."""
    task = asyncio.ensure_future(work)
    event_task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, event_task], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for one in (task, event_task):
            one.cancel()
        await asyncio.gather(task, event_task, return_exceptions=True)
