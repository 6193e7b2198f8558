"""What the next router must know of one client connection, in memory that outlives this process.

    bytes 0..255     two headers, of which `CURRENT` says which one holds: a kill between two writes leaves the other
    RING             the last bytes given to the socket, at their number modulo RING_BYTES
    LOG              entries since the request began: what the client sent of it, what its choices have got

Bytes count from the first one that was read on the connection. The kernel knows how many of the bytes given to the
socket it has taken (`socket_bytes`), so what is missing after a kill is sent again from the ring, not one byte twice.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slipstream.router.http.observer import AnswerPhase
from slipstream.router.protocol.messages import pack_ids
from slipstream.router.protocol.model_id import ModelId

MAGIC = b"SLIPKEP1"
CURRENT = 8  # the byte that says which header holds
HEADERS = (64, 128)  # where they begin
BUSY = 9  # the byte that says that a large part is being written into the ring, over what may not have been sent yet
RING = 256
RESENT_BYTES = 128 * 1024  # more than waits in the process for one slow reader: `exchange.UNSENT_BYTES`
SMALL_PART_BYTES = 32 * 1024  # for which `BUSY` is not set: the ring has room for it beside what may have to be resent
RING_BYTES = RESENT_BYTES + SMALL_PART_BYTES
LOG = RING + RING_BYTES
FIRST_LOG_BYTES = 32 * 1024  # room for the log; it is doubled until it suffices
KEPT_LOG_BYTES = 128 * 1024  # that an idle connection may go on having
MAX_LOG_BYTES = 256 << 20  # a larger request is in memory once, and is not repeated by the next router

HEADER = struct.Struct("<HHIQQQQ")  # phase, spoiled, lives; bytes in and out; length of the log, now and at takeover
ENTRY = struct.Struct("<HHI")  # kind, choice, length in bytes; then its content
ONE_TOKEN = struct.Struct("<HHIi")  # an entry with one token
IDENTITY_ENTRY = struct.Struct(
    "<16sQQH"
)  # number, created_s, seed, length of the model's name; then that and a version
INPUT, TOKENS, VERSION, ENDED, IDENTITY, CONTINUE = KINDS = range(1, 7)  # of entries


class Identity(NamedTuple):
    """What makes an answer the same one when it is computed again: the number of its id, its time in seconds since
    1970, the seed of requests that came without one, and the model that the request's name stood for then, with the
    version that it asked for ("" if none)."""

    number: int
    created_s: int
    seed: int
    model: ModelId


class JournalError(Exception):
    """The memory is not that of a journal, or makes no sense."""


@dataclass(frozen=True, slots=True)
class UnfinishedAnswer:
    """What another router needs to go on with an answer."""

    request: bytes  # as far as it has come
    continue_sent: bool  # the client was asked for its body
    head_sent: bool  # a part of the answer has been sent
    identity: Identity | None  # None: the answer has none yet
    version: str  # of the model that the tokens come from
    ended: frozenset[int]  # choices of which the client has all
    tokens: dict[int, bytes]  # packed int32 by choice: those whose text was sent, or all if nothing was


NOTHING = UnfinishedAnswer(b"", False, False, None, "", frozenset(), {})


class Journal:
    """Written as the connection goes on. What is noted counts once it is committed, which each `sent` does: so a token
    and the bytes that tell the client of it count together, or not at all."""

    def __init__(self, fd: int) -> None:
        """Takes over an open memory file, which is closed. Raises JournalError, OSError."""
        try:
            memory = self._memory = mmap.mmap(fd, 0)
        except ValueError as error:
            raise JournalError(str(error)) from error
        finally:
            os.close(fd)
        if len(memory) < LOG or memory[: len(MAGIC)] != MAGIC or memory[CURRENT] > 1:
            raise JournalError("this is no journal of a connection")
        self._header = memory[CURRENT]
        phase, spoiled, self._num_lives, *num_bytes = HEADER.unpack_from(memory, HEADERS[self._header])
        self.in_bytes, self._out_bytes, self._log_bytes, self._log_bytes_before = num_bytes
        if phase not in AnswerPhase.__members__.values() or LOG + self._log_bytes > len(memory):
            raise JournalError("the header of the journal makes no sense")
        self.phase = AnswerPhase(phase)
        self.is_spoiled = bool(spoiled)

    @classmethod
    def create(cls) -> tuple[Journal, int]:
        """A new one, and an open file of its memory for others. Raises OSError."""
        fd = os.memfd_create("slipstream-connection", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, LOG + FIRST_LOG_BYTES)
            os.pwrite(fd, MAGIC, 0)
            return cls(os.dup(fd)), fd
        except OSError:
            os.close(fd)
            raise

    @classmethod
    def in_file(cls, path: Path) -> Journal:
        """One in a file on disk, which outlives its process without a holder; a new one if the file is empty or not
        there. Raises JournalError, OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size == 0:
                os.ftruncate(fd, LOG + FIRST_LOG_BYTES)
                os.pwrite(fd, MAGIC, 0)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def begin_at(self, in_bytes: int, out_bytes: int) -> None:
        """So many bytes have come and gone before anything is noted."""
        self.in_bytes, self._out_bytes = in_bytes, out_bytes
        self.commit()

    def received(self, data: bytes | memoryview) -> None:
        """The client has sent something."""
        self.in_bytes += len(data)
        if not self.is_spoiled and self._log_bytes + len(data) > MAX_LOG_BYTES:
            self.is_spoiled = True
            self._log_bytes = self._log_bytes_before = 0
        elif not self.is_spoiled:
            self._append(INPUT, 0, data)
        self.commit()
        if self.is_spoiled and len(self._memory) > LOG + MAX_LOG_BYTES // 2:
            self._memory.resize(LOG + FIRST_LOG_BYTES)

    def continued(self, data: bytes | memoryview) -> None:
        """`data` asks the client for the body of its request."""
        if not self.is_spoiled:
            self._append(CONTINUE, 0, b"")
        self.sent(data, AnswerPhase.IDLE)

    def begun(self) -> None:
        """A whole request is there."""
        if self.phase in (AnswerPhase.IDLE, AnswerPhase.ENDED):
            self.phase = AnswerPhase.RUNNING
            self.commit()

    def spoil(self) -> None:
        """What is under way cannot be noted well enough to go on with it. The next exchange can."""
        self.is_spoiled = True
        self.commit()

    def named(self, identity: Identity) -> None:
        """The answer has got its identity."""
        if not self.is_spoiled:
            number = identity.number.to_bytes(16, "little")
            name, version = identity.model.name.encode(), identity.model.version.encode()
            fixed = IDENTITY_ENTRY.pack(number, identity.created_s, identity.seed, len(name))
            self._append(IDENTITY, 0, fixed + name + version)
            self.commit()

    def token(self, choice: int, token_id: int) -> None:
        """A choice has got a token; it counts with the next `sent`."""
        begin = LOG + self._log_bytes
        if self.is_spoiled or begin + ONE_TOKEN.size > len(self._memory):
            self.tokens(choice, pack_ids((token_id,)))
            return
        ONE_TOKEN.pack_into(self._memory, begin, TOKENS, choice, 4, token_id)
        self._log_bytes += ONE_TOKEN.size

    def tokens(self, choice: int, packed_ids: bytes) -> None:
        """A choice has got several tokens, packed as int32; they count with the next `sent`."""
        if not self.is_spoiled:
            self._append(TOKENS, choice, packed_ids)

    def ended(self, choice: int) -> None:
        """With the next `sent`, the client has all of a choice."""
        if not self.is_spoiled:
            self._append(ENDED, choice, b"")

    def served_by(self, version: str) -> None:
        """From now on tokens come from this version of the model."""
        if not self.is_spoiled:
            self._append(VERSION, 0, version.encode())

    def sent(self, data: bytes | memoryview, phase: AnswerPhase) -> None:
        """To be called before `data` is given to the socket."""
        is_large = len(data) > SMALL_PART_BYTES
        if is_large:
            self._memory[BUSY] = 1
        begin = self._out_bytes % RING_BYTES
        end = begin + len(data)
        if end <= RING_BYTES:
            self._memory[RING + begin : RING + end] = data
        else:
            self._fill_ring(data)
        self._out_bytes += len(data)
        self.phase = phase
        self.commit()
        if is_large:
            self._memory[BUSY] = 0

    def _fill_ring(self, data: bytes | memoryview) -> None:
        """Writes what does not fit between here and the ring's end."""
        tail = data[-RING_BYTES:]
        begin = (self._out_bytes + len(data) - len(tail)) % RING_BYTES
        room = min(RING_BYTES - begin, len(tail))
        self._memory[RING + begin : RING + begin + room] = tail[:room]
        self._memory[RING : RING + len(tail) - room] = tail[room:]

    def rest(self) -> None:
        """The exchange is over, and nothing of the next one has come."""
        self.phase, self.is_spoiled = AnswerPhase.IDLE, False
        self._num_lives = self._log_bytes = self._log_bytes_before = 0
        self.commit()
        if len(self._memory) > LOG + KEPT_LOG_BYTES:
            self._memory.resize(LOG + FIRST_LOG_BYTES)

    def release(self) -> None:
        """After `rest`, when all that was sent is with the system: nothing but the header is needed any more."""
        with suppress(OSError):  # a system that cannot give back a part
            self._memory.madvise(mmap.MADV_REMOVE, mmap.PAGESIZE)

    def outlive(self) -> None:
        """Another router goes on with it."""
        self._memory[BUSY] = 0
        self._num_lives = self.num_lives + 1
        self._log_bytes_before = self._log_bytes
        self.commit()

    def left_in_order(self) -> None:
        """This process was not killed while it had the exchange: that life does not count."""
        self._num_lives = 0
        self.commit()

    def commit(self) -> None:
        """What was noted counts from now on: the header that is not in use is written, then it is the one in use."""
        header = self._header = 1 - self._header
        HEADER.pack_into(
            self._memory,
            HEADERS[header],
            self.phase,
            self.is_spoiled,
            self._num_lives,
            self.in_bytes,
            self._out_bytes,
            self._log_bytes,
            self._log_bytes_before,
        )
        self._memory[CURRENT] = header

    @property
    def num_lives(self) -> int:
        """How many routers in a row the exchange has outlived without getting a token from the last one."""
        return self._num_lives if self._log_bytes == self._log_bytes_before else 0

    def unsent(self, written_bytes: int) -> bytes | None:
        """What was given to the socket and not taken by it; None: more than the ring has, or the count is wrong."""
        missing = self._out_bytes - written_bytes
        if not 0 <= missing <= (0 if self._memory[BUSY] else RESENT_BYTES):
            return None
        begin = written_bytes % RING_BYTES
        first = self._memory[RING + begin : min(RING + begin + missing, LOG)]
        return first + self._memory[RING : RING + missing - len(first)]

    def unfinished(self) -> UnfinishedAnswer:
        """The request, as far as it has come, and its tokens. Raises JournalError."""
        request, identity, version = bytearray(), None, ""
        continue_sent, ended, tokens = False, set[int](), dict[int, bytearray]()
        for kind, choice, data in self._entries():
            if kind == INPUT:
                request += data
            elif kind == VERSION:
                version = data.decode("utf-8", "replace")
            elif kind == IDENTITY:
                number, created_s, seed, end_of_name = IDENTITY_ENTRY.unpack_from(data)
                name, asked = data[IDENTITY_ENTRY.size :][:end_of_name], data[IDENTITY_ENTRY.size + end_of_name :]
                model = ModelId(name.decode("utf-8", "replace"), asked.decode("utf-8", "replace"))
                identity = Identity(int.from_bytes(number, "little"), created_s, seed, model)
            elif kind == CONTINUE:
                continue_sent = True
            elif kind == ENDED:
                ended.add(choice)
            else:
                tokens.setdefault(choice, bytearray()).extend(data)
        head_sent = self.phase == AnswerPhase.STREAMING
        packed_ids = {choice: bytes(packed) for choice, packed in tokens.items()}
        return UnfinishedAnswer(
            bytes(request), continue_sent, head_sent, identity, version, frozenset(ended), packed_ids
        )

    def close(self) -> None:
        self._memory.close()

    def _entries(self) -> Iterator[tuple[int, int, bytes]]:
        at, end = LOG, LOG + self._log_bytes
        while at < end:
            if at + ENTRY.size > end:
                raise JournalError("the last entry of the journal is not whole")
            kind, choice, length = ENTRY.unpack_from(self._memory, at)
            at += ENTRY.size
            if kind not in KINDS or at + length > end:
                raise JournalError("an entry of the journal makes no sense")
            yield kind, choice, self._memory[at : at + length]
            at += length

    def _append(self, kind: int, choice: int, data: bytes | memoryview) -> None:
        begin = LOG + self._log_bytes
        end = begin + ENTRY.size + len(data)
        if end > len(self._memory):
            try:
                self._memory.resize(max(2 * len(self._memory) - LOG, end))  # the log has twice the room
            except OSError:  # there is no memory: the connection goes on, and ends with this process
                self.is_spoiled = True
                return
        ENTRY.pack_into(self._memory, begin, kind, choice, len(data))
        self._memory[begin + ENTRY.size : end] = data
        self._log_bytes += ENTRY.size + len(data)
