"""The queue through which other threads reach the engine thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class InboxFull(RuntimeError):  # noqa: N818 - names the condition
    """More than `limit` items are waiting, so the sender must be ignoring its credits."""


class Inbox(Generic[T]):
    """A bounded queue with many producers and one consumer, which takes everything at once under one lock.

    `turn` shows whether the consumer keeps coming back: it changes with each `take`, and is None while `take` waits
    (and before the first).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._num_taken = 0
        self.turn: int | None = None

    def put(self, item: T) -> None:
        """Adds a request of a peer. For any thread; never blocks. Raises InboxFull."""
        with self._changed:
            if len(self._items) >= self._limit:
                raise InboxFull(f"{self._limit} items wait for the engine thread")
            self._items.append(item)
            self._changed.notify()

    def put_always(self, item: T) -> None:
        """Adds an item that must not be lost, and whose number is bounded by itself, such as the end of something that
        was begun."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def take(self, timeout_s: float | None) -> list[T]:
        """All items in order of arrival. Waits up to `timeout_s` for the first (0: not at all, None: for ever)."""
        self._num_taken += 1
        self.turn = None
        items = self._take(timeout_s)
        self.turn = self._num_taken
        return items

    def _take(self, timeout_s: float | None) -> list[T]:
        if timeout_s == 0 and not self._items:  # the case of a busy engine, without taking the lock
            return []
        with self._changed:
            if not self._items and timeout_s != 0:
                self._changed.wait(timeout_s)
            items = list(self._items)
            self._items.clear()
            return items
