"""What the next router must know of one client connection, in memory that outlives this process.

    bytes 0..255     two headers, of which `CURRENT` says which one holds: a kill between two writes leaves the other
    RING             the last bytes given to the socket, at their number modulo RING_BYTES
    LOG              entries since the request began: what the client sent of it, the tokens that its choices have got

Bytes count from the first one that was read on the connection. The kernel knows how many of the bytes given to the
socket it has taken (`socket_bytes`), so what is missing after a kill is sent again from the ring, not one byte twice.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x534C4B31
CURRENT = 0  # the byte that says which header holds
HEADERS = (32, 144)
RING = 256
RING_BYTES = 128 * 1024  # more than waits in the process for one slow reader: `connection.WRITE_BUFFER_BYTES`
LOG = RING + RING_BYTES
FIRST_LOG_BYTES = 32 * 1024
KEPT_LOG_BYTES = 1024 * 1024  # that an idle connection may go on having

# Magic, phase, spoiled, lives; bytes in and out, length of the log; the answer's identity.
HEADER = struct.Struct("<IHHIQQQ16sQQ")
ENTRY = struct.Struct("<HHI")  # kind, choice, length in bytes
INPUT, TOKENS, VERSION, ENDED = 1, 2, 3, 4


class Phase(IntEnum):
    """How far the exchange is that the log is about."""

    IDLE = 0  # none has begun, or only a part of its request is there
    RUNNING = 1  # nothing of the answer has been sent
    STREAMING = 2
    ENDED = 3  # all of the answer has been given to the socket
    CLOSING = 4  # the same, and the connection is to be closed


class Identity(NamedTuple):
    """What makes an answer the same one when it is computed again: the number of its id, its time in seconds since
    1970, and the seed of requests that came without one."""

    number: int
    created_s: int
    seed: int


NO_IDENTITY = Identity(0, 0, 0)


class JournalError(Exception):
    """The memory is not that of a journal."""


class Header(NamedTuple):
    """`num_lives` counts the routers that the exchange has outlived; `is_spoiled`: it cannot be taken over."""

    phase: Phase
    is_spoiled: bool
    num_lives: int
    in_bytes: int
    out_bytes: int
    log_bytes: int
    identity: Identity

    @classmethod
    def unpack_from(cls, memory: mmap.mmap, offset: int) -> Header:
        magic, phase, spoiled, lives, ins, outs, logged, number, created_s, seed = HEADER.unpack_from(memory, offset)
        if magic != MAGIC or logged > len(memory) - LOG:
            raise JournalError("this is no journal of a connection")
        identity = Identity(int.from_bytes(number, "little"), created_s, seed)
        return cls(Phase(phase), bool(spoiled), lives, ins, outs, logged, identity)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What there is to go on from: whether anything has been sent, packed int32 `tokens` by choice, the version of the
    model that they come from, and which choices have `ended`."""

    request: bytes
    head_sent: bool
    version: str
    ended: frozenset[int]
    tokens: dict[int, bytes]


NOTHING = Unfinished(b"", False, "", frozenset(), {})


class Journal:
    """Written as the connection goes on. What is noted holds once `commit`ted, which each `sent` does: so tokens and
    the bytes that tell the client of them hold together, or not at all."""

    def __init__(self, fd: int) -> None:
        """Takes over an open memory file, which is closed. Raises JournalError, OSError."""
        try:
            self._memory = mmap.mmap(fd, 0)
            if len(self._memory) < LOG:
                raise JournalError("the memory is too small for a journal")
            self._header = Header.unpack_from(self._memory, HEADERS[self._memory[CURRENT] & 1])
        except ValueError as error:
            raise JournalError(str(error)) from error
        finally:
            os.close(fd)
        self._phase, self._is_spoiled, self._num_lives, self._in, self._out, self._logged, self._identity = self._header

    @classmethod
    def create(cls) -> tuple[Journal, int]:
        """A new one, and an open file of its memory for others. Raises OSError."""
        fd = os.memfd_create("slipstream-connection", os.MFD_CLOEXEC)
        os.ftruncate(fd, LOG + FIRST_LOG_BYTES)
        os.pwrite(fd, HEADER.pack(MAGIC, Phase.IDLE, False, 0, 0, 0, 0, bytes(16), 0, 0), HEADERS[0])
        return cls(os.dup(fd)), fd

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_spoiled(self) -> bool:
        return self._is_spoiled

    @property
    def num_lives(self) -> int:
        return self._num_lives

    @property
    def in_bytes(self) -> int:
        return self._in

    @property
    def identity(self) -> Identity | None:
        """Of the answer that is under way, if it has got one."""
        return self._identity if self._identity != NO_IDENTITY else None

    # ---- what happens on the connection

    def received(self, data: bytes) -> None:
        """The client has sent something."""
        self._in += len(data)
        if not self._is_spoiled:
            self._append(INPUT, 0, data)
        self.commit()

    def begun(self) -> None:
        """A whole request is there."""
        if self._phase in (Phase.IDLE, Phase.ENDED):
            self._phase = Phase.RUNNING
            self.commit()

    def spoil(self) -> None:
        """What is under way cannot be told well enough to go on with it. The next exchange can."""
        self._is_spoiled = True
        self.commit()

    def named(self, identity: Identity) -> None:
        """The answer has got its identity."""
        self._identity = identity
        self.commit()

    def tokens(self, choice: int, packed_ids: bytes) -> None:
        """A choice has got tokens; they hold with the next `sent`."""
        if not self._is_spoiled:
            self._append(TOKENS, choice, packed_ids)

    def ended(self, choice: int) -> None:
        """With the next `sent`, the client has all of a choice."""
        if not self._is_spoiled:
            self._append(ENDED, choice, b"")

    def served_by(self, version: str) -> None:
        """From now on tokens come from this version of the model."""
        if not self._is_spoiled:
            self._append(VERSION, 0, version.encode())

    def sent(self, data: bytes, phase: Phase) -> None:
        """To be called before `data` is given to the socket."""
        kept = data[-RING_BYTES:]
        begin = (self._out + len(data) - len(kept)) % RING_BYTES
        room = RING_BYTES - begin
        memory = self._memory
        if len(kept) <= room:
            memory[RING + begin : RING + begin + len(kept)] = kept
        else:
            memory[RING + begin : LOG] = kept[:room]
            memory[RING : RING + len(kept) - room] = kept[room:]
        self._out += len(data)
        self._phase = phase
        self.commit()

    def rest(self) -> None:
        """The exchange is over, and nothing of the next one has come."""
        self._phase, self._is_spoiled, self._num_lives, self._logged = Phase.IDLE, False, 0, 0
        self._identity = NO_IDENTITY
        self.commit()
        if len(self._memory) > LOG + KEPT_LOG_BYTES:
            self._memory.resize(LOG + FIRST_LOG_BYTES)

    def outlive(self) -> None:
        """Another router goes on with it."""
        self._num_lives += 1
        self.commit()

    def commit(self) -> None:
        place = 1 - (self._memory[CURRENT] & 1)
        number, created_s, seed = self._identity
        HEADER.pack_into(
            self._memory,
            HEADERS[place],
            MAGIC,
            self._phase,
            self._is_spoiled,
            self._num_lives,
            self._in,
            self._out,
            self._logged,
            number.to_bytes(16, "little"),
            created_s,
            seed,
        )
        self._memory[CURRENT] = place

    # ---- what the next router asks

    def unsent(self, written_bytes: int) -> bytes | None:
        """What was given to the socket and not taken by it; None: more than is kept, or the count makes no sense."""
        missing = self._out - written_bytes
        if not 0 <= missing <= RING_BYTES:
            return None
        begin = written_bytes % RING_BYTES
        first = self._memory[RING + begin : min(RING + begin + missing, LOG)]
        return first + self._memory[RING : RING + missing - len(first)]

    def unfinished(self) -> Unfinished:
        """The request, as far as it has come, and its tokens. Raises JournalError."""
        request, version, ended, tokens = bytearray(), "", set[int](), dict[int, bytearray]()
        for kind, choice, data in self._entries():
            if kind == INPUT:
                request += data
            elif kind == VERSION:
                version = data.decode("utf-8", "replace")
            elif kind == ENDED:
                ended.add(choice)
            else:
                tokens.setdefault(choice, bytearray()).extend(data)
        head_sent = self._phase == Phase.STREAMING
        packed_ids = {choice: bytes(packed) for choice, packed in tokens.items()}
        return Unfinished(bytes(request), head_sent, version, frozenset(ended), packed_ids)

    def close(self) -> None:
        self._memory.close()

    def _entries(self) -> Iterator[tuple[int, int, bytes]]:
        at, end = LOG, LOG + self._logged
        while at < end:
            kind, choice, length = ENTRY.unpack_from(self._memory, at)
            at += ENTRY.size
            if kind not in (INPUT, TOKENS, VERSION, ENDED) or at + length > end:
                raise JournalError("an entry of the journal makes no sense")
            yield kind, choice, self._memory[at : at + length]
            at += length

    def _append(self, kind: int, choice: int, data: bytes) -> None:
        begin = LOG + self._logged
        end = begin + ENTRY.size + len(data)
        if end > len(self._memory):
            self._memory.resize(max(2 * len(self._memory), end))
        ENTRY.pack_into(self._memory, begin, kind, choice, len(data))
        self._memory[begin + ENTRY.size : end] = data
        self._logged += ENTRY.size + len(data)
