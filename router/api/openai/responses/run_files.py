"""What a response in the background leaves for the process that may have to go on with it, beside the store's blobs.

    ID.journal   its tokens so far; locked by the process that generates it
    ID           its events so far, if they were asked for; they stay with the response

Tokens are noted before the events that show them are written, and events are a function of the tokens: so the next
process makes all events again, and adds those that are not in the file.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import BinaryIO

from slipstream.router.http.failover.journal import Identity, Journal, JournalError
from slipstream.router.protocol.generation import Delta, Resumed
from slipstream.router.protocol.messages import pack_ids
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.store.blob_folder import BlobFolder, file_errors, locked

END_OF_EVENT = b"\n\n"
READ_BYTES = 256 * 1024


class RunFiles:
    """Life cycle: `claim`, `open`, then any calls, then `remove` or not, then `close`. Every call blocks, and raises
    StoreError."""

    def __init__(self, blobs: BlobFolder, response_id: str) -> None:
        self._journal_path = blobs.path(f"{response_id}.journal")
        self._events_path = blobs.path(response_id)
        self._lock: BinaryIO | None = None
        self._events: BinaryIO | None = None
        self._journal: Journal | None = None
        self.num_events = 0  # that are in the file at `open`

    def claim(self) -> bool:
        """Makes this process the one that generates the response; False: another one is."""
        with file_errors(self._journal_path):
            self._lock = locked(self._journal_path, "ab", fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._lock is not None

    def open(self, keeps_events: bool) -> Journal:
        """The journal, which counts one more life. One that a loss of power has torn begins anew."""
        with file_errors(self._journal_path):
            try:
                journal = self._opened()
            except JournalError:
                os.truncate(self._journal_path, 0)
                journal = self._opened()
            journal.outlive()
            self._journal = journal
        if keeps_events:
            with file_errors(self._events_path):
                self._events = self._events_path.open("a+b")
                self._events.seek(0)
                before = self._events.read()
                self._events.truncate(before.rfind(END_OF_EVENT) + len(END_OF_EVENT) if END_OF_EVENT in before else 0)
                self.num_events = before.count(END_OF_EVENT)
        return journal

    def _opened(self) -> Journal:
        """Raises JournalError, OSError."""
        journal = Journal.in_file(self._journal_path)
        try:
            journal.unfinished()
        except JournalError:
            journal.close()
            raise
        return journal

    def add_events(self, data: bytes) -> None:
        assert self._events is not None, "events are kept"
        with file_errors(self._events_path):
            self._events.write(data)
            self._events.flush()

    def remove(self) -> None:
        """Nothing more is generated. If another process has claimed it, that one removes it."""
        if self._lock is not None:
            with suppress(OSError):  # the next start of a router removes it
                self._journal_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Safe to call twice."""
        if self._events is not None:
            with suppress(OSError):
                self._events.close()
            self._events = None
        if self._journal is not None:
            self._journal.left_in_order()
            self._journal.close()
            self._journal = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_events(blobs: BlobFolder, response_id: str, offset: int) -> bytes:
    """Some events of a response, from a byte on; empty: there are no more yet. Blocks. Raises StoreError."""
    path = blobs.path(response_id)
    with file_errors(path), suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(READ_BYTES)
    return b""


class RunCheckpoint:
    """A `StreamCheckpoint` of a response in the background. Tokens with log-probabilities are not noted: such a
    response is computed again."""

    def __init__(self, journal: Journal, identity: Identity) -> None:
        """Raises JournalError."""
        self._journal = journal
        self._identity = identity
        before = journal.unfinished()
        self._version = before.version
        tokens = before.tokens.get(0, b"")
        self._resumed = Resumed(tokens, before.version) if tokens else None

    def model(self) -> ModelId | None:
        return self._identity.model if self._resumed is not None else None

    def identity(self, model: ModelId) -> Identity:
        return self._identity

    def resumed(self, choice: int) -> Resumed | None:
        return self._resumed

    def has_ended(self, choice: int) -> bool:
        return False

    def got(self, choice: int, delta: Delta, version: str) -> None:
        if delta[0][1] is not None:
            return
        if version != self._version:
            self._version = version
            self._journal.served_by(version)
        self._journal.tokens(choice, pack_ids([token_id for token_id, _ in delta]))
        self._journal.commit()

    def ended(self, choice: int) -> None: ...

    def spoil(self) -> None: ...

    def of_whole_answer(self) -> RunCheckpoint:
        return self
