"""The one door through which other threads reach the engine thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class InboxFull(RuntimeError):  # noqa: N818 - names the condition
    """More than `limit` items wait: whoever sends does not keep to its credits."""


class Inbox(Generic[T]):
    """A bounded queue of many producers and one consumer, who takes all that is there with one lock.

    `turn` shows whether the consumer comes back: it is another number after each `take`, and None while `take` waits
    (and before the first).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._num_taken = 0
        self.turn: int | None = None

    def put(self, item: T) -> None:
        """What a peer asks for. From any thread; never blocks. Raises InboxFull."""
        with self._changed:
            if len(self._items) >= self._limit:
                raise InboxFull(f"{self._limit} items wait for the engine thread")
            self._items.append(item)
            self._changed.notify()

    def put_always(self, item: T) -> None:
        """What must not be lost and is bounded by itself: the end of something that was begun, once."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def take(self, timeout_s: float | None) -> list[T]:
        """All items in order of arrival; waits for the first one up to `timeout_s` (0: not at all, None: for ever)."""
        self._num_taken += 1
        self.turn = None
        items = self._take(timeout_s)
        self.turn = self._num_taken
        return items

    def _take(self, timeout_s: float | None) -> list[T]:
        if timeout_s == 0 and not self._items:  # the busy engine's case: no lock
            return []
        with self._changed:
            if not self._items and timeout_s != 0:
                self._changed.wait(timeout_s)
            items = list(self._items)
            self._items.clear()
            return items
