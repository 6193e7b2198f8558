"""What a prefix cache has stored and removed since the last time that somebody asked."""

from __future__ import annotations

MAX_CHANGES = 65_536


class CacheChanges:
    """The net changes by digest: a page that was added and removed in between does not count. Beyond `limit` changes,
    only the fact that there were too many is kept, so a cache without readers costs no memory."""

    __slots__ = ("_is_stored", "_limit", "are_too_many")

    def __init__(self, limit: int = MAX_CHANGES) -> None:
        self._limit = limit
        self._is_stored: dict[bytes, bool] = {}
        self.are_too_many = False

    def __bool__(self) -> bool:
        return bool(self._is_stored) or self.are_too_many

    def store(self, digest: bytes) -> None:
        self._change(digest, True)

    def remove(self, digest: bytes) -> None:
        self._change(digest, False)

    def take(self) -> tuple[list[bytes], list[bytes]]:
        """Returns the digests stored and removed, and starts over. Both are empty if there were too many changes."""
        stored = [digest for digest, is_stored in self._is_stored.items() if is_stored]
        removed = [digest for digest, is_stored in self._is_stored.items() if not is_stored]
        self._is_stored.clear()
        self.are_too_many = False
        return stored, removed

    def _change(self, digest: bytes, is_stored: bool) -> None:
        if self.are_too_many:
            return
        if self._is_stored.pop(digest, is_stored) is not is_stored:
            return  # back to what it was
        self._is_stored[digest] = is_stored
        if len(self._is_stored) > self._limit:
            self._is_stored.clear()
            self.are_too_many = True
