"""A connection that another process has begun, as data for the server that goes on with it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Generic

from slipstream.router.http.http_error import HttpError
from slipstream.router.http.observer import AnswerPhase, C, ConnectionObserver


@dataclass(frozen=True, slots=True)
class RestoredConnection(Generic[C]):
    """`phase` is how far its exchange has come. `unsent` was given to the socket and not taken by it. `request` has
    come of the request that is under way; `continue_sent`: its client was asked for the body. With a `refusal` the
    exchange ends so."""

    sock: socket.socket
    observer: ConnectionObserver[C]
    phase: AnswerPhase
    unsent: bytes = b""
    request: bytes = b""
    continue_sent: bool = False
    refusal: HttpError | None = None

    @property
    def is_running(self) -> bool:
        """Whether an answer was under way."""
        return self.phase in (AnswerPhase.RUNNING, AnswerPhase.STREAMING)

    @property
    def head_sent(self) -> bool:
        """Whether a part of the answer has been sent."""
        return self.phase == AnswerPhase.STREAMING
