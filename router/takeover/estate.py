"""The router's side of the keeper: what it finds there at its start, and what it leaves there."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.open_files import allow_all_files
from slipstream.router.takeover.journal import Journal, JournalError, Phase
from slipstream.router.takeover.link import KeeperLink
from slipstream.router.takeover.messages import Kind
from slipstream.router.takeover.place import close_all
from slipstream.router.takeover.socket_bytes import NO_BYTES, SocketBytes, socket_bytes

log = logging.getLogger(__name__)

LEFT = "the client has left"
MAX_LIVES = 2  # an exchange that has outlived so many routers may be what kills them
MANY_LIVES = f"they have outlived {MAX_LIVES} routers already, and may be what kills them"
FIRST_RETRY_S = 0.1  # after which a link that broke is tried again
MAX_RETRY_S = 5.0


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

    @property
    def is_given_up(self) -> bool:
        """Nobody goes on with its request, of whose answer nothing has been sent yet: its client is told so."""
        return self.kept.journal.phase == Phase.RUNNING and self.kept.journal.num_lives >= MAX_LIVES


class Estate:
    """What outlives this router. Connections that cannot be kept are served all the same, and end with it.

    A link to the keeper that breaks is made anew, once `attend` was called: the keeper has gone on keeping what it had.
    """

    def __init__(self, path: Path, place: int) -> None:
        self._path = path
        self._place = place
        self._link: KeeperLink | None = None
        self._last = 0
        self._numbers: set[int] = set()  # of connections that the keeper has
        self._forgotten: deque[int] = deque()  # that the keeper could not be told yet
        self._is_telling = False  # of them as soon as the keeper has room
        self._spare: list[tuple[Journal, int]] = []  # with an open file of each
        self._listening: dict[int, tuple[Kind, socket.socket]] = {}
        self._ends: Counter[str] = Counter()  # of inherited connections, by reason
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is attended
        self._rejoining: asyncio.Task[None] | None = None
        self._most_files = allow_all_files() // 2  # from there on for connections only: a journal takes one more each
        self.listening: list[socket.socket] = []  # for clients
        self.for_workers: list[socket.socket] = []
        self.connections: list[Inherited] = []

    @classmethod
    def of_keeper(cls, path: Path, place: int = 0, num_fronts: int = 0) -> Estate | None:
        """What the router before has left at a keeper, if there is one; None: nothing will be kept. Blocks a little.
        Each of several fronts has a `place` of its own; their router says how many they are."""
        estate = cls(path, place)
        try:
            link = estate._link = KeeperLink()
            link.greet(path, Kind.HELLO, place, num_fronts)
            estate._inherit(link)
            estate._tell_forgotten()  # only now does the keeper listen
            link.listen()
        except (OSError, struct.error, ValueError) as error:
            estate.close()
            for sock in (*estate.listening, *estate.for_workers):
                sock.close()
            log.warning("client connections will not outlive this router: %s", error)
            return None
        for reason, count in (+estate._ends).items():
            log.info("connections of the router before that end here: %d, %s", count, reason)
        return estate

    def _inherit(self, link: KeeperLink) -> None:
        while True:
            kind, number, fds = link.receive()
            self._last = max(self._last, number)
            if kind == Kind.READY:
                return
            if kind in (Kind.LISTENING, Kind.WORKERS):
                for fd in fds:
                    sock = socket.socket(fileno=fd)
                    (self.listening if kind == Kind.LISTENING else self.for_workers).append(sock)
                    self._listening[number] = kind, sock
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
                inherited = Inherited(number, sock, journal, missing_of(sock, journal))
                self.connections.append(inherited)
                self._ends[MANY_LIVES] += inherited.is_given_up
                self._numbers.add(number)
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

    # ---- while this router serves

    def attend(self) -> None:
        """From now on the link is looked after, on the running loop. Idempotent."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._link is None:
                self._rejoin()
            else:
                self._watch(self._link)

    def keep_listening(self, sockets: Sequence[socket.socket], for_workers: bool = False) -> None:
        """The next router accepts who comes while there is none, and nobody else gets the port meanwhile."""
        for sock in sockets:
            self._last += 1
            kind = Kind.WORKERS if for_workers else Kind.LISTENING
            self._listening[self._last] = kind, sock
            self._send(kind, self._last, [sock.fileno()])

    def keep(self, sock: socket.socket) -> Kept | None:
        """Leaves a connection to the next router, before anything is read from it. None: it ends with this process."""
        return self._keep(sock, NO_BYTES) if self._may_keep(sock) else None

    def keep_from_now_on(self, sock: socket.socket) -> Kept | None:
        """The same between two requests, when all that was written is with the system. Raises OSError if it is
        broken."""
        if not self._may_keep(sock):
            return None
        counts = socket_bytes(sock)
        return None if counts.has_peer_ended else self._keep(sock, counts)

    def _may_keep(self, sock: socket.socket) -> bool:
        return self._link is not None and sock.fileno() < self._most_files

    def _keep(self, sock: socket.socket, counts: SocketBytes) -> Kept | None:
        try:
            journal, fd = self._spare.pop() if self._spare else Journal.create()
        except OSError as error:
            log.warning("a connection will not outlive this router: %s", error)
            return None
        if counts is not NO_BYTES:
            journal.begin_at(counts.num_read, counts.num_written)
        self._last += 1
        is_kept = self._send(Kind.CONNECTION, self._last, [sock.fileno(), fd])
        os.close(fd)
        if not is_kept:
            journal.close()
            return None
        self._numbers.add(self._last)
        return Kept(self._last, journal)

    def has(self, number: int) -> bool:
        """As far as is known here, the keeper has that connection."""
        return number in self._numbers

    @property
    def has_room(self) -> bool:
        """The keeper takes another connection at once, or will not take any."""
        return self._link.has_room if self._link is not None else self._rejoining is None

    def prepare(self, num_connections: int) -> None:
        """Has journals ready for so many connections: between accepting one and keeping it there should be no time in
        which the router could be killed."""
        try:
            while self._link is not None and len(self._spare) < num_connections:
                self._spare.append(Journal.create())
        except OSError as error:
            log.warning("connections may not outlive this router: %s", error)

    def forget(self, number: int) -> None:
        """A connection is over: it stays open for the client as long as the keeper has it."""
        if number in self._numbers:
            self._numbers.discard(number)
            self._forgotten.append(number)
            self._tell_forgotten()

    def farewell(self) -> None:
        """This router ends in order, and nobody comes after it."""
        if self._link is not None:
            try:
                self._link.send_last(Kind.FAREWELL)
            except OSError as error:
                log.warning("the keeper does not know that this router ends: %s", error)
        self.close()

    def close(self) -> None:
        """Lets go of the keeper, which keeps what it has, and of what nobody has taken over."""
        if self._rejoining is not None:
            self._rejoining.cancel()
            self._rejoining = None
        self._close_link()
        self._loop = None
        for inherited in self.connections:
            inherited.sock.close()
            inherited.kept.journal.close()
        self.connections = []

    # ---- the link

    def _watch(self, link: KeeperLink) -> None:
        asyncio.get_running_loop().add_reader(link.fileno(), self._broke, "the keeper closed it")

    def _tell_forgotten(self) -> None:
        while self._forgotten and self._link is not None:
            if not self._send(Kind.FORGET, self._forgotten[0]):
                if self._link is not None and not self._is_telling:
                    self._is_telling = True
                    asyncio.get_running_loop().add_writer(self._link.fileno(), self._tell_forgotten)
                return
            self._forgotten.popleft()
        self._stop_telling()

    def _stop_telling(self) -> None:
        if self._is_telling and self._link is not None:
            asyncio.get_running_loop().remove_writer(self._link.fileno())
        self._is_telling = False

    def _send(self, kind: Kind, number: int, fds: Sequence[int] = ()) -> bool:
        """False: the keeper is busy, or the link is broken."""
        if self._link is None:
            return False
        try:
            return self._link.send(kind, number, fds)
        except OSError as error:
            self._broke(str(error))
            return False

    def _broke(self, why: str) -> None:
        log.warning("client connections would not outlive this router: the link to their keeper broke: %s", why)
        self._close_link()
        if self._loop is not None:
            self._rejoin()

    def _rejoin(self) -> None:
        self._rejoining = asyncio.get_running_loop().create_task(self._join_again())

    async def _join_again(self) -> None:
        """Till the keeper has what this router has, and nothing else of it."""
        retry_s = FIRST_RETRY_S
        while True:
            link = KeeperLink()
            try:
                held = await asyncio.to_thread(held_by_keeper, link, self._path, self._place)
            except (OSError, struct.error, ValueError):
                link.close()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            except asyncio.CancelledError:
                link.close()
                raise
            else:
                break
        self._link, self._rejoining = link, None
        self._watch(link)
        lost = self._numbers - held
        self._numbers &= held
        self._forgotten = deque(held - self._numbers - self._listening.keys())
        for number, (kind, sock) in self._listening.items():
            if number not in held:
                self._send(kind, number, [sock.fileno()])
        self._tell_forgotten()
        log.info("the keeper is there again, with %d connections; %d were lost", len(self._numbers), len(lost))

    def _close_link(self) -> None:
        link = self._link
        if link is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(link.fileno())
        self._stop_telling()
        self._link = None
        link.close()
        for journal, fd in self._spare:
            journal.close()
            os.close(fd)
        self._spare = []


def held_by_keeper(link: KeeperLink, path: Path, place: int) -> set[int]:
    """Connects again. Returns the numbers of what the keeper has. Blocks. Raises OSError, ValueError, struct.error."""
    held = set[int]()
    link.greet(path, Kind.AGAIN, place, 0)
    while True:
        kind, number, fds = link.receive()
        close_all(fds)
        if kind == Kind.READY:
            link.listen()
            return held
        held.add(number)


def missing_of(sock: socket.socket, journal: Journal) -> bytes:
    """What the client has still to get of what it was sent. Raises JournalError if nobody can go on with this
    connection, OSError if it is broken."""
    counts = socket_bytes(sock)
    unsent = journal.unsent(counts.num_written)
    if journal.phase == Phase.CLOSING and unsent is not None:
        return unsent  # whatever the client has sent since
    if counts.has_peer_ended and not (journal.phase in (Phase.IDLE, Phase.ENDED) and unsent):
        raise JournalError(LEFT)
    if counts.num_read != journal.in_bytes:
        raise JournalError("what was read last is not known")
    if journal.is_spoiled:
        raise JournalError("the journal does not tell all of what was under way")
    if journal.num_lives >= MAX_LIVES and journal.phase not in (Phase.ENDED, Phase.RUNNING):
        raise JournalError(MANY_LIVES)
    if unsent is None:
        raise JournalError("more waits to be sent than is kept")
    return unsent
