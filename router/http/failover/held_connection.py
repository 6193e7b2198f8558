"""Client connections that the socket holder has, too: this router's, and those of the previous one."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass

from slipstream.router.http.failover.journal import NOTHING, Journal, JournalError, UnfinishedAnswer
from slipstream.router.http.failover.receive_buffer import FilledBuffer
from slipstream.router.http.failover.socket_bytes import SocketBytes, socket_bytes
from slipstream.router.http.http_error import router_restarted
from slipstream.router.http.observer import AnswerPhase, C, ConnectionObserver
from slipstream.router.http.restored_connection import RestoredConnection

LEFT = "the client has left"
MAX_LIVES = 3  # an exchange that has outlived so many routers in a row without a token may be what kills them
MANY_LIVES = f"they have outlived {MAX_LIVES} routers without a token, and may be what kills them"


@dataclass(frozen=True, slots=True)
class HeldConnection:
    """A connection of this router at the holder: its number there, and its journal."""

    number: int
    journal: Journal


class NotRestorableError(Exception):
    """A connection of the previous router has to end. The text says why."""


@dataclass(frozen=True, slots=True)
class OrphanedConnection:
    """A connection of a router that is gone. `unsent` was given to its socket, which had not taken it yet; `unfinished`
    is the request that was under way, as far as it has come."""

    held: HeldConnection
    sock: socket.socket
    unsent: bytes
    unfinished: UnfinishedAnswer

    @classmethod
    def open(cls, number: int, sock_fd: int, journal_fd: int, last_read: FilledBuffer) -> OrphanedConnection:
        """Takes over both descriptors. `last_read` is what the previous router has read last, of any connection. Raises
        NotRestorableError; then they are closed."""
        with ExitStack() as on_failure:
            sock = on_failure.enter_context(socket.socket(fileno=sock_fd))
            try:
                journal = on_failure.enter_context(closing(Journal(journal_fd)))
                counts = socket_bytes(sock)
                note_last_read(last_read, number, journal, counts.num_read)
                unsent = unsent_of(journal, counts)
                restored = cls(HeldConnection(number, journal), sock, unsent, journal.unfinished())
            except JournalError as error:
                raise NotRestorableError(str(error)) from error
            except OSError as error:
                raise NotRestorableError(LEFT) from error
            on_failure.pop_all()
        return restored

    @property
    def is_running(self) -> bool:
        """Whether an answer was under way."""
        return self.held.journal.phase in (AnswerPhase.RUNNING, AnswerPhase.STREAMING)

    @property
    def is_given_up(self) -> bool:
        """Its request is not continued. Nothing of the answer has been sent yet, so its client gets an error."""
        return self.held.journal.phase == AnswerPhase.RUNNING and self.held.journal.num_lives >= MAX_LIVES

    def restored(self, observer: ConnectionObserver[C]) -> RestoredConnection[C]:
        """The connection in the form in which a server goes on with it."""
        journal, unfinished, refusal = self.held.journal, self.unfinished, None
        if self.is_given_up:
            message = "The routers that had this request were killed, one after the other. Ask again."
            unfinished, refusal = NOTHING, router_restarted(message)
        elif journal.phase == AnswerPhase.CLOSING:
            unfinished = NOTHING
        elif journal.phase == AnswerPhase.ENDED:
            journal.rest()
            unfinished = NOTHING
        elif unfinished.request:
            journal.outlive()
        return RestoredConnection(
            self.sock, observer, journal.phase, self.unsent, unfinished.request, unfinished.continue_sent, refusal
        )


def note_last_read(last_read: FilledBuffer, number: int, journal: Journal, num_read: int) -> None:
    """What was read last and not noted is noted now, if it is known."""
    data = last_read.of(number, num_read - journal.in_bytes)
    if not data:
        return
    if journal.phase == AnswerPhase.ENDED and not journal.is_spoiled:
        journal.rest()  # it is of the next request
    journal.received(data)
    if journal.phase in (AnswerPhase.RUNNING, AnswerPhase.STREAMING):
        journal.spoil()  # a request is under way, and this is of the next one


def unsent_of(journal: Journal, counts: SocketBytes) -> bytes:
    """What the client has still to get of what it was sent. Raises NotRestorableError."""
    unsent = journal.unsent(counts.num_written)
    if journal.phase == AnswerPhase.CLOSING and unsent is not None:
        return unsent  # whatever the client has sent since
    if counts.has_peer_ended and not (journal.phase in (AnswerPhase.IDLE, AnswerPhase.ENDED) and unsent):
        raise NotRestorableError(LEFT)
    if counts.num_read != journal.in_bytes:
        raise NotRestorableError("what was read last is not known")
    if journal.is_spoiled:
        raise NotRestorableError("the journal does not tell all of what was under way")
    if journal.num_lives >= MAX_LIVES and journal.phase not in (AnswerPhase.ENDED, AnswerPhase.RUNNING):
        raise NotRestorableError(MANY_LIVES)
    if unsent is None:
        raise NotRestorableError("more waits to be sent than the journal has")
    return unsent
