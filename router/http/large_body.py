"""Where large bodies of requests arrive: in memory of the handler's choice, without a copy."""

from __future__ import annotations

from typing import Protocol

STEP_BYTES = 4 << 20  # of memory are made at a time, ahead of the bytes that arrive


class BodyPlace(Protocol):
    """Memory for one body, until it is released. What a client promises takes none up: `grow` does."""

    @property
    def view(self) -> memoryview:
        """The memory of the whole body."""
        ...

    def grow(self, num_bytes: int) -> bool:
        """Makes the memory of its first `num_bytes`. False: there is none."""
        ...

    def release(self) -> None:
        """Idempotent."""


class BodyPlaces(Protocol):
    """Gives places for bodies that are larger than `reader.STRANGERS_BODY_BYTES`, and whose length is known."""

    def chunked_limit_bytes(self, path: str) -> int | None:
        """How large a body may be whose length is not known before it ends. None: as any other."""

    def place_for(self, path: str, num_bytes: int, headers: list[tuple[bytes, bytes]]) -> BodyPlace | None:
        """`path` is as it was sent, `headers` have names in lower case. None: the body comes as any other, within the
        limit for bodies. Raises HttpError if there is no memory for it."""


class ArrivingBody:
    """A body on its way into its place."""

    __slots__ = ("_num_ready", "_view", "keep_alive", "num_filled", "place")

    def __init__(self, place: BodyPlace, keep_alive: bool) -> None:
        self.place = place
        self.keep_alive = keep_alive
        self._view = place.view
        self.num_filled = 0
        self._num_ready = 0  # bytes from the beginning, that memory was made for

    @property
    def num_bytes(self) -> int:
        return len(self._view)

    @property
    def room(self) -> memoryview:
        """Where the next bytes of the body go."""
        return self._view[self.num_filled : self._num_ready]

    def make_room(self, num_bytes: int = 1) -> bool:
        """For so many bytes at least, unless the body ends before. False: there is no memory for them."""
        needed = min(self.num_filled + num_bytes, len(self._view))
        if needed <= self._num_ready:
            return True
        ready = min(needed + STEP_BYTES, len(self._view))
        if not self.place.grow(ready):
            return False
        self._num_ready = ready
        return True

    def put(self, part: bytes) -> None:
        self._view[self.num_filled : self.num_filled + len(part)] = part
        self.num_filled += len(part)

    def filled(self, num_bytes: int) -> bool:
        """So much has been put into `room`. Returns whether the body is whole."""
        self.num_filled += num_bytes
        return self.num_filled == len(self._view)
