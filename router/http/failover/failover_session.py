"""The router's side of the socket holder: what it gets from there at its start, and what it has held."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from slipstream.router.http.failover.held_connection import (
    MANY_LIVES,
    HeldConnection,
    NotRestorableError,
    OrphanedConnection,
)
from slipstream.router.http.failover.holder.holder_messages import HolderMessageKind, close_all
from slipstream.router.http.failover.holder_link import HolderLink
from slipstream.router.http.failover.journal import Journal
from slipstream.router.http.failover.receive_buffer import (
    NOTHING_READ,
    FilledBuffer,
    ReceiveBuffer,
    create_buffer_file,
)
from slipstream.router.http.failover.socket_bytes import NO_BYTES, SocketBytes, socket_bytes
from slipstream.router.process.open_files import allow_all_files

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.1  # after which a link that broke is tried again
MAX_RETRY_S = 5.0


class FailoverSession:
    """What outlives this router. Connections that cannot be held are served all the same, and end with it.

    A link to the holder that breaks is made anew, once `attend` was called: the holder still has what it had.
    """

    def __init__(self, path: Path, slot: int) -> None:
        self._path = path
        self._slot = slot
        self._link: HolderLink | None = None  # None: it is broken, or closed
        self._last_number = 0  # that was given to anything here
        self._numbers: set[int] = set()  # of connections that the holder has
        self._forgotten: deque[int] = deque()  # numbers of those that are over, which the holder does not know yet
        self._is_sending_forgotten = False  # the holder had no room: the rest is sent when it has
        self._spare: list[tuple[Journal, int]] = []  # with an open file of each
        self._lasting: dict[int, tuple[HolderMessageKind, socket.socket | FileIO]] = {}  # what else the holder has
        self._num_ended: Counter[str] = Counter()  # connections of the previous router that end here, by reason
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is attended
        self._rejoining: asyncio.Task[None] | None = None
        self._max_files = allow_all_files() // 2  # for connections: a journal takes one more each
        self.has_said_farewell = False
        self.receive_buffer: ReceiveBuffer | None = None  # of this process, until it is closed
        self.listening: list[socket.socket] = []  # for clients
        self.for_workers: list[socket.socket] = []
        self.connections: list[OrphanedConnection] = []

    @classmethod
    def of_holder(cls, path: Path, slot: int = 0, num_fronts: int = 0) -> FailoverSession | None:
        """What the previous router has left at the holder at `path`; None: it is not there, and nothing will be held.
        Blocks a little. Each of several fronts has a `slot` of its own; their router says how many they are."""
        failover = cls(path, slot)
        try:
            link = failover._link = HolderLink()
            link.greet(path, HolderMessageKind.HELLO, slot, num_fronts)
            failover._receive_held(link)
            failover._hold_receive_buffer()
            failover._send_forgotten()  # only now does the holder listen
            link.end_receiving()
        except (OSError, ValueError) as error:
            failover.close()
            for sock in (*failover.listening, *failover.for_workers):
                sock.close()
            log.warning("client connections will not outlive this router: %s", error)
            return None
        for reason, count in (+failover._num_ended).items():
            log.info("connections of the previous router that end here: %d, %s", count, reason)
        return failover

    def _receive_held(self, link: HolderLink) -> None:
        """Receives what the holder has kept: the connections come last."""
        last_read = NOTHING_READ
        while True:
            kind, number, fds = link.receive()
            self._last_number = max(self._last_number, number)
            if kind == HolderMessageKind.READY:
                return
            if kind in (HolderMessageKind.LISTENING, HolderMessageKind.WORKERS):
                for fd in fds:
                    sock = socket.socket(fileno=fd)
                    (self.listening if kind == HolderMessageKind.LISTENING else self.for_workers).append(sock)
                    self._lasting[number] = kind, sock
            elif kind == HolderMessageKind.BUFFER:
                for fd in fds:
                    last_read = self._open_receive_buffer(fd, number).last_read
            elif len(fds) == 2:
                sock_fd, journal_fd = fds
                self._receive_connection(number, sock_fd, journal_fd, last_read)
            else:
                self._num_ended["too many files are open"] += 1
                close_all(fds)
                self._forgotten.append(number)

    def _open_receive_buffer(self, fd: int, number: int) -> ReceiveBuffer:
        """Takes over an open memory file. Raises OSError, ValueError."""
        file = FileIO(fd)
        self._lasting[number] = HolderMessageKind.BUFFER, file
        self.receive_buffer = ReceiveBuffer(fd)
        return self.receive_buffer

    def _hold_receive_buffer(self) -> None:
        """What is read from now on will not be lost. Raises OSError."""
        if self.receive_buffer is None:
            self._last_number += 1
            fd = create_buffer_file()
            self._open_receive_buffer(fd, self._last_number)
            self._send(HolderMessageKind.BUFFER, self._last_number, [fd])

    def _receive_connection(self, number: int, sock_fd: int, journal_fd: int, last_read: FilledBuffer) -> None:
        try:
            restored = OrphanedConnection.open(number, sock_fd, journal_fd, last_read)
        except NotRestorableError as why:
            self._num_ended[str(why)] += 1
            self._forgotten.append(number)
        else:
            self.connections.append(restored)
            self._numbers.add(number)
            self._num_ended[MANY_LIVES] += restored.is_given_up

    def attend(self) -> None:
        """From now on the link is looked after, on the running loop. Idempotent."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._link is None:
                self._rejoin()
            else:
                self._watch(self._link)

    def keep_listening(self, sockets: Sequence[socket.socket], for_workers: bool = False) -> None:
        """The next router accepts clients that come while there is none, and no other program gets the port meanwhile.
        Sockets that are held already change nothing."""
        held = [file for _, file in self._lasting.values()]
        for sock in sockets:
            if sock in held:
                continue
            self._last_number += 1
            kind = HolderMessageKind.WORKERS if for_workers else HolderMessageKind.LISTENING
            self._lasting[self._last_number] = kind, sock
            self._send(kind, self._last_number, [sock.fileno()])

    def take_unix_socket(self) -> socket.socket | None:
        """The Unix socket among those that listen for clients, which is the caller's from now on."""
        for sock in self.listening:
            if sock.family == socket.AF_UNIX:
                self.listening.remove(sock)
                return sock
        return None

    def keep(self, sock: socket.socket) -> HeldConnection | None:
        """Leaves a connection to the next router, before anything is read from it. None: it ends with this process."""
        return self._keep(sock, NO_BYTES) if self._may_keep(sock) else None

    def keep_from_now_on(self, sock: socket.socket) -> HeldConnection | None:
        """Leaves a connection to the next router, between two requests, when all that was written is with the system.
        Raises OSError if it is broken."""
        if not self._may_keep(sock):
            return None
        counts = socket_bytes(sock)
        return None if counts.has_peer_ended else self._keep(sock, counts)

    def _may_keep(self, sock: socket.socket) -> bool:
        return self._link is not None and sock.fileno() < self._max_files

    def _keep(self, sock: socket.socket, counts: SocketBytes) -> HeldConnection | None:
        try:
            journal, fd = self._spare.pop() if self._spare else Journal.create()
        except OSError as error:
            log.warning("a connection will not outlive this router: %s", error)
            return None
        if counts is not NO_BYTES:
            journal.begin_at(counts.num_read, counts.num_written)
        self._last_number += 1
        is_held = self._send(HolderMessageKind.CONNECTION, self._last_number, [sock.fileno(), fd])
        os.close(fd)
        if not is_held:
            journal.close()
            return None
        self._numbers.add(self._last_number)
        return HeldConnection(self._last_number, journal)

    def has(self, number: int) -> bool:
        """As far as is known here, the holder has that connection."""
        return number in self._numbers

    @property
    def has_room(self) -> bool:
        """The holder takes another connection at once, or will not take any."""
        return self._link.has_room if self._link is not None else self._rejoining is None

    def prepare(self, num_connections: int) -> None:
        """Has journals ready for so many connections: between accepting one and having it held there should be no time
        in which the router could be killed."""
        try:
            while self._link is not None and len(self._spare) < num_connections:
                self._spare.append(Journal.create())
        except OSError as error:
            log.warning("connections may not outlive this router: %s", error)

    def forget(self, number: int) -> None:
        """A connection is over: it stays open for the client as long as the holder has it."""
        if number in self._numbers:
            self._numbers.discard(number)
            self._forgotten.append(number)
            self._send_forgotten()

    def stop_listening(self) -> None:
        """There will be no new clients. Those that are there outlive this router as before."""
        for number, (kind, _) in list(self._lasting.items()):
            if kind == HolderMessageKind.LISTENING:
                del self._lasting[number]
                self._forgotten.append(number)
        self._send_forgotten()

    def farewell(self) -> None:
        """This router ends in order, and no other one follows."""
        self.has_said_farewell = True
        if self._link is not None:
            try:
                self._link.send_last(HolderMessageKind.FAREWELL)
            except OSError as error:
                log.warning("the socket holder does not know that this router ends: %s", error)
        self.close()

    def close(self) -> None:
        """Ends the link to the holder, which still has what it had, and closes connections that were not taken over."""
        if self._rejoining is not None:
            self._rejoining.cancel()
            self._rejoining = None
        self._close_link()
        self._loop = None
        for restored in self.connections:
            restored.sock.close()
            restored.held.journal.close()
        self.connections = []
        self.receive_buffer = None
        for kind, file in self._lasting.values():
            if kind == HolderMessageKind.BUFFER:
                file.close()

    def _watch(self, link: HolderLink) -> None:
        asyncio.get_running_loop().add_reader(link.fileno(), self._broke, "the socket holder closed it")

    def _send_forgotten(self) -> None:
        while self._forgotten and self._link is not None:
            if not self._send(HolderMessageKind.FORGET, self._forgotten[0]):
                if self._link is not None and not self._is_sending_forgotten:
                    self._is_sending_forgotten = True
                    asyncio.get_running_loop().add_writer(self._link.fileno(), self._send_forgotten)
                return
            self._forgotten.popleft()
        self._stop_sending()

    def _stop_sending(self) -> None:
        if self._is_sending_forgotten and self._link is not None:
            asyncio.get_running_loop().remove_writer(self._link.fileno())
        self._is_sending_forgotten = False

    def _send(self, kind: HolderMessageKind, number: int, fds: Sequence[int] = ()) -> bool:
        """False: the holder is busy, or the link is broken."""
        if self._link is None:
            return False
        try:
            return self._link.send(kind, number, fds)
        except OSError as error:
            self._broke(str(error))
            return False

    def _broke(self, why: str) -> None:
        log.warning("client connections would not outlive this router: the link to the socket holder broke: %s", why)
        self._close_link()
        if self._loop is not None:
            self._rejoin()

    def _rejoin(self) -> None:
        self._rejoining = asyncio.get_running_loop().create_task(self._join_again())

    async def _join_again(self) -> None:
        """Tries until the holder is there, and then brings it in line with what this router has."""
        retry_s = FIRST_RETRY_S
        while (joined := await self._joined()) is None:
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)
        link, held = joined
        self._link, self._rejoining = link, None
        self._watch(link)
        lost = self._numbers - held
        self._numbers &= held
        self._forgotten = deque(held - self._numbers - self._lasting.keys())
        for number, (kind, file) in self._lasting.items():
            if number not in held:
                self._send(kind, number, [file.fileno()])
        self._send_forgotten()
        log.info("the socket holder is there again, with %d connections; %d were lost", len(self._numbers), len(lost))

    async def _joined(self) -> tuple[HolderLink, set[int]] | None:
        """A new link, and the numbers of what the holder has; None: it is not there yet, or no file is free."""
        try:
            link = HolderLink()
        except OSError:
            return None
        try:
            return link, await asyncio.to_thread(held_numbers, link, self._path, self._slot)
        except (OSError, ValueError):
            link.close()
            return None
        except asyncio.CancelledError:
            link.close()
            raise

    def _close_link(self) -> None:
        link = self._link
        if link is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(link.fileno())
        self._stop_sending()
        self._link = None
        link.close()
        for journal, fd in self._spare:
            journal.close()
            os.close(fd)
        self._spare = []


def held_numbers(link: HolderLink, path: Path, slot: int) -> set[int]:
    """Connects again. Returns the numbers of what the holder has. Blocks. Raises OSError, ValueError."""
    held = set[int]()
    link.greet(path, HolderMessageKind.AGAIN, slot, 0)
    while True:
        kind, number, fds = link.receive()
        close_all(fds)
        if kind == HolderMessageKind.READY:
            link.end_receiving()
            return held
        held.add(number)
