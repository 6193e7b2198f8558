"""What has changed in the state of a cluster, once for all its readers. Without a clock or I/O."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

WHOLE, CHANGES = b"whole", b"changes"  # the names of events


class LiveState:
    """The entries by key, as JSON texts, and what the last reading has changed.

    A reader remembers the number of the reading that it has seen. The one before the last gets the changes, which are
    rendered once; a reader that has missed a reading gets all entries, so nothing is kept for slow ones.
    """

    def __init__(self) -> None:
        self.number = 0  # of the last reading that changed something
        self.entries: Mapping[str, bytes] = {}
        self._changes = b""
        self._whole = b""  # rendered when it is asked for

    def advance(self, entries: Mapping[str, bytes]) -> None:
        """Takes a reading."""
        before = self.entries
        changed = {key: text for key, text in entries.items() if before.get(key) != text}
        removed = [key for key in before if key not in entries]
        if not changed and not removed and self.number:
            return
        self.number += 1
        self.entries = entries
        self._changes = event(CHANGES, changed, removed)
        self._whole = b""

    def event_after(self, seen: int) -> bytes:
        """What a reader needs that has seen the reading with this number; 0: none so far. Empty if nothing is new."""
        if seen == self.number:
            return b""
        if seen and seen == self.number - 1:
            return self._changes
        if not self._whole:
            self._whole = event(WHOLE, self.entries)
        return self._whole


def event(name: bytes, entries: Mapping[str, bytes], removed: list[str] | None = None) -> bytes:
    """A server-sent event with `{"set": {KEY: ENTRY}}` and, of changes, `"removed": [KEY]`."""
    fields = b",".join([orjson.dumps(key) + b":" + text for key, text in entries.items()])
    gone = b"" if removed is None else b',"removed":' + orjson.dumps(removed)
    return b"event: " + name + b'\ndata: {"set":{' + fields + b"}" + gone + b"}\n\n"
