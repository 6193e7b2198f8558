"""The router's side of the keeper: what it finds there at its start, and what it leaves there."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.open_files import allow_all_files
from slipstream.router.takeover.journal import Journal, JournalError, Phase
from slipstream.router.takeover.keeper import MAX_FDS, MESSAGE, PATIENCE_S, Kind, close_all
from slipstream.router.takeover.socket_bytes import socket_bytes

log = logging.getLogger(__name__)

LEFT = "the client has left"
MAX_LIVES = 2  # an exchange that has outlived so many routers may be what kills them


@dataclass(frozen=True, slots=True)
class Kept:
    """A connection that the keeper has, too, by its number there."""

    number: int
    journal: Journal


class Inherited:
    """A client connection of a router that is gone. `unsent` was given to the socket, which had not taken it yet."""

    __slots__ = ("kept", "sock", "unfinished", "unsent")

    def __init__(self, number: int, sock: socket.socket, journal: Journal, unsent: bytes) -> None:
        """Raises JournalError."""
        self.kept = Kept(number, journal)
        self.sock = sock
        self.unfinished = journal.unfinished()
        self.unsent = unsent

    @property
    def is_running(self) -> bool:
        """An answer was under way."""
        return self.kept.journal.phase in (Phase.RUNNING, Phase.STREAMING)


class Estate:
    """What outlives this router. Connections that cannot be kept are served all the same, and end with it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._poll = select.poll()
        self._poll.register(link, select.POLLOUT)
        self._last = 0
        self._forgotten: deque[int] = deque()  # that the keeper could not be told yet
        self._spare: list[tuple[Journal, int]] = []  # with an open file of each
        self._ends: Counter[str] = Counter()  # of inherited connections, by reason
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = True
        self._most_files = allow_all_files() // 2  # from there on for connections only: a journal takes one more each
        self.listening: list[socket.socket] = []  # for clients
        self.for_workers: list[socket.socket] = []
        self.connections: list[Inherited] = []

    @classmethod
    def of_keeper(cls, path: Path, place: int = 0) -> Estate | None:
        """What the router before has left at a keeper, if there is one; None: nothing will be kept. Blocks a little.
        Each of several fronts has a `place` of its own."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(PATIENCE_S)
        estate = cls(link)
        try:
            link.connect(str(path))
            link.send(MESSAGE.pack(Kind.HELLO, place))
            estate._inherit()
            estate._tell_forgotten()  # only now does the keeper listen
            link.setblocking(False)
        except (OSError, struct.error, ValueError) as error:
            estate.close()
            for sock in (*estate.listening, *estate.for_workers):
                sock.close()
            log.warning("client connections will not outlive this router: %s", error)
            return None
        for reason, count in estate._ends.items():
            log.info("connections of the router before that end here: %d, %s", count, reason)
        return estate

    def _inherit(self) -> None:
        while True:
            message, fds, _, _ = socket.recv_fds(self._link, MESSAGE.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            kind, number = MESSAGE.unpack(message)
            self._last = max(self._last, number)
            if kind == Kind.READY:
                return
            if kind in (Kind.LISTENING, Kind.WORKERS):
                sockets = self.listening if kind == Kind.LISTENING else self.for_workers
                sockets.extend(socket.socket(fileno=fd) for fd in fds)
            elif len(fds) == 2:
                self._inherit_connection(number, *fds)
            else:
                self._ends["too many files are open"] += 1
                close_all(fds)
                self._forgotten.append(number)

    def _inherit_connection(self, number: int, sock_fd: int, journal_fd: int) -> None:
        sock = socket.socket(fileno=sock_fd)
        try:
            journal = Journal(journal_fd)
            try:
                self.connections.append(Inherited(number, sock, journal, missing_of(sock, journal)))
                return
            except (JournalError, OSError):
                journal.close()
                raise
        except JournalError as error:
            self._ends[str(error)] += 1
        except OSError:
            self._ends[LEFT] += 1
        sock.close()
        self._forgotten.append(number)

    def keep_listening(self, sockets: Sequence[socket.socket], for_workers: bool = False) -> None:
        """The next router accepts who comes while there is none, and nobody else gets the port meanwhile."""
        for sock in sockets:
            self._last += 1
            self._send(Kind.WORKERS if for_workers else Kind.LISTENING, self._last, [sock.fileno()])

    def keep(self, sock: socket.socket) -> Kept | None:
        """Leaves a connection to the next router, before anything is read from it. None: it ends with this process."""
        if not self._is_open or sock.fileno() >= self._most_files:
            return None
        try:
            journal, fd = self._spare.pop() if self._spare else Journal.create()
        except OSError as error:
            log.warning("a connection will not outlive this router: %s", error)
            return None
        self._last += 1
        is_kept = self._send(Kind.CONNECTION, self._last, [sock.fileno(), fd])
        os.close(fd)
        if not is_kept:
            journal.close()
            return None
        return Kept(self._last, journal)

    @property
    def has_room(self) -> bool:
        """The keeper takes another connection at once, or there is none."""
        return not self._is_open or bool(self._poll.poll(0))

    def prepare(self, num_connections: int) -> None:
        """Has journals ready for so many connections: between accepting one and keeping it there should be no time in
        which the router could be killed."""
        try:
            while self._is_open and len(self._spare) < num_connections:
                self._spare.append(Journal.create())
        except OSError as error:
            log.warning("connections may not outlive this router: %s", error)

    def forget(self, number: int) -> None:
        """A connection is over: it stays open for the client as long as the keeper has it."""
        if not self._is_open:
            return
        self._forgotten.append(number)
        self._tell_forgotten()

    def farewell(self) -> None:
        """This router ends in order, and nobody comes after it."""
        if self._is_open:
            self._link.setblocking(True)
            self._send(Kind.FAREWELL, 0, [])
        self.close()

    def close(self) -> None:
        """Lets go of the keeper, which keeps what it has, and of what nobody has taken over."""
        self._close_link()
        for inherited in self.connections:
            inherited.sock.close()
            inherited.kept.journal.close()
        self.connections = []

    def _tell_forgotten(self) -> None:
        while self._forgotten and self._is_open:
            if not self._send(Kind.FORGET, self._forgotten[0], []):
                if self._is_open and self._loop is None:
                    self._loop = asyncio.get_running_loop()
                    self._loop.add_writer(self._link, self._tell_forgotten)
                return
            self._forgotten.popleft()
        if self._loop is not None:
            self._loop.remove_writer(self._link)
            self._loop = None

    def _send(self, kind: Kind, number: int, fds: list[int]) -> bool:
        """False: the keeper is busy, or gone."""
        if not self._is_open:
            return False
        try:
            socket.send_fds(self._link, [MESSAGE.pack(kind, number)], fds)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # descriptors under way
                return False
            log.warning("client connections will not outlive this router: its keeper is gone: %s", error)
            self._close_link()
            return False
        return True

    def _close_link(self) -> None:
        if self._loop is not None:
            self._loop.remove_writer(self._link)
            self._loop = None
        self._is_open = False
        self._link.close()
        for journal, fd in self._spare:
            journal.close()
            os.close(fd)
        self._spare = []


def missing_of(sock: socket.socket, journal: Journal) -> bytes:
    """What the client has still to get of what it was sent. Raises JournalError if nobody can go on with this
    connection, OSError if it is broken."""
    counts = socket_bytes(sock)
    if counts.num_read == journal.in_bytes + 1:  # the end of the client's sending counts as one
        raise JournalError(LEFT)
    if counts.num_read != journal.in_bytes:
        raise JournalError("what was read last is not known")
    if journal.is_spoiled:
        raise JournalError("the journal does not tell all of what was under way")
    if journal.num_lives >= MAX_LIVES and journal.phase not in (Phase.ENDED, Phase.CLOSING):
        raise JournalError(f"they have outlived {MAX_LIVES} routers already, and may be what kills them")
    unsent = journal.unsent(counts.num_written)
    if unsent is None:
        raise JournalError("more waits to be sent than is kept")
    return unsent
