"""The answer to one request: either one whole response or a stream of parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Generic, Protocol

from slipstream.router.http.http_error import ErrorForm, HttpError, openai_error, router_restarted
from slipstream.router.http.observer import C
from slipstream.router.http.reader import Request

JSON = "application/json"
# They have neither a type nor a length (RFC 9110, 8.6).
BODILESS = frozenset({HTTPStatus.NO_CONTENT.value, HTTPStatus.NOT_MODIFIED.value})
CHUNKED = "transfer-encoding: chunked\r\n"
UNSENT_BYTES = 64 * 1024  # wait in this process for one slow reader before its handler is held back
SENT_AT_ONCE_BYTES = 1024 * 1024  # of a large response
PHRASES = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}  # the latter is Anthropic's


class ResponseSink(Protocol):
    """What an exchange needs of its connection."""

    @property
    def date(self) -> str: ...
    @property
    def draining(self) -> bool:
        """The connection is to be closed after the response that begins now."""
        ...

    @property
    def client_address(self) -> str:
        """The IP address of the other end, which may be a proxy; "" without one."""
        ...

    def send(self, data: bytes | memoryview) -> None: ...
    def abort(self) -> None: ...
    def limit_unsent(self, max_bytes: int) -> None:
        """The exchange is paused while more than this waits to be sent."""


class Exchange(Generic[C]):
    """Write side of one request. Use `respond` alone, or `start`, any number of `write`s and `finish`. `context` is
    what the handlers of this server keep of a request beside it.

    The head of a stream leaves together with its first part: until then the handler can still answer with an error
    status. `write` never waits; a handler that writes much awaits `drain()` while `congested`, which holds back its
    own stream only.
    """

    __slots__ = (
        "_body_allowed",
        "_can_write",
        "_head",
        "_http10",
        "_is_repeated",
        "_sink",
        "congested",
        "context",
        "cors_lines",
        "ended",
        "error_form",
        "head_sent",
        "header_lines",
        "keep_alive",
        "request_id",
        "status",
    )

    def __init__(
        self,
        request: Request,
        sink: ResponseSink,
        context: C,
        *,
        is_repeated: bool = False,
        head_sent: bool = False,
    ) -> None:
        """`is_repeated`: a process that is gone had begun with the request; `head_sent` by it."""
        self._sink = sink
        self._is_repeated = is_repeated
        self.context = context
        self._body_allowed = request.method != "HEAD"
        self._http10 = request.http10
        self.congested = False  # more is waiting for a slow reader than is kept for it
        self._can_write: asyncio.Future[None] | None = None  # while `drain` waits for that
        self._head = b""
        self.request_id = ""  # goes with the response, whatever it will be, as X-Request-Id
        self.header_lines = ""  # further lines of the head, whatever the response will be
        self.error_form: ErrorForm = openai_error  # that of the API whose path was asked for
        self.cors_lines = ""  # further lines, for the browser in which the client runs
        self.status = 0
        self.keep_alive = request.keep_alive and not sink.draining
        self.head_sent = head_sent
        self.ended = False

    @property
    def is_ending(self) -> bool:
        """The server closes its connections: a stream without an end of its own is to end now."""
        return self._sink.draining

    @property
    def client_address(self) -> str:
        """The IP address of the other end, which may be a proxy; "" without one, as of a Unix socket."""
        return self._sink.client_address

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send one whole response; one with status 204 or 304 has no body."""
        assert not self.head_sent, "the head of the response has left already"
        framing = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
        head = self._render_head(status, headers, framing if status not in BODILESS else "")
        self.head_sent = True
        self.ended = True
        self._sink.send(head + body if self._body_allowed else head)

    async def respond_in_parts(
        self,
        status: int,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send one whole response that lies in several parts, the first of them not empty. Only the end of the last one
        is copied: their memory is free when this returns. That is in the same turn as the end is sent: what the client
        sends when it has the whole answer is no request ahead of its time."""
        assert not self.head_sent, "the head of the response has left already"
        num_bytes = sum([len(part) for part in parts])
        framing = f"content-type: {content_type}\r\ncontent-length: {num_bytes}\r\n"
        pieces, end = cut_for_sending(parts) if self._body_allowed else ([], b"")
        self._sink.limit_unsent(0)
        try:
            self._sink.send(self._render_head(status, headers, framing))
            self.head_sent = True
            for piece in pieces:
                self._sink.send(piece)
                await self.drain()
        finally:
            self._sink.limit_unsent(UNSENT_BYTES)
        self.ended = True
        self._sink.send(bytes(end))

    def add_header(self, name: str, value: str) -> None:
        """Adds a line to the head of the response, be it an answer or an error."""
        self.header_lines += f"{name}: {value}\r\n"

    def start(self, status: int, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Prepare the head of a streamed response; nothing is sent before the first `write` or `finish`."""
        assert not self.head_sent or self._is_repeated, "the head of the response has left already"
        self.keep_alive = self.keep_alive and not self._http10  # without chunks only closing can mark the end
        framing = f"content-type: {content_type}\r\n{'' if self._http10 else CHUNKED}"
        self._head = self._render_head(status, headers, framing)

    def write(self, data: bytes) -> None:
        """Send one non-empty part of a streamed response."""
        if not self._http10:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if not self.head_sent:
            self.head_sent = True
            data = self._head + data
        self._sink.send(data)

    def finish(self, data: bytes = b"") -> None:
        """End a streamed response, after a last part if `data` is not empty."""
        if not self._http10:
            data = (b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)) if data else b"0\r\n\r\n"
        if not self.head_sent:
            self.head_sent = True
            data = self._head + data
        self.ended = True
        self._sink.send(data)

    def fail(self, error: HttpError) -> None:
        """Answer with an error; if a part has left already, break off, lest the client take it for the whole."""
        if self.head_sent:
            self._sink.abort()
            self.ended = True
        else:
            self.respond(error.status, self.error_form(error, self.request_id), JSON, error.headers)

    def refuse_if_repeated(self) -> None:
        """Raises HttpError if a router that was killed may have done what the request asks for. To be called before
        anything that is not to be done twice."""
        if self._is_repeated:
            message = "The router was killed before it could answer. See whether it did what was asked, or ask again."
            raise router_restarted(message)

    async def drain(self) -> None:
        """Wait until the reader has caught up."""
        while self.congested:
            if self._can_write is None:
                self._can_write = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._can_write)

    def pause(self) -> None:
        """The connection's buffer is full."""
        self.congested = True

    def resume(self) -> None:
        """The connection's buffer has room again."""
        self.congested = False
        if self._can_write is not None:
            self._can_write.set_result(None)
            self._can_write = None

    def _render_head(self, status: int, headers: Iterable[tuple[str, str]], framing: str) -> bytes:
        self.status = status
        extra = self.cors_lines + self.header_lines + "".join([f"{name}: {value}\r\n" for name, value in headers])
        if self.request_id:
            extra += f"x-request-id: {self.request_id}\r\n"
        connection = "connection: keep-alive\r\n" if self._http10 else ""
        if not self.keep_alive:
            connection = "connection: close\r\n"
        return (
            f"HTTP/1.1 {status} {PHRASES[status]}\r\ndate: {self._sink.date}\r\n{framing}{connection}{extra}\r\n"
        ).encode("latin-1")


Handler = Callable[[Request, Exchange[C]], Awaitable[None]]


def cut_for_sending(parts: Sequence[bytes | memoryview]) -> tuple[list[bytes | memoryview], bytes | memoryview]:
    """The pieces of a large response, and what is sent after them."""
    pieces = [part[at : at + SENT_AT_ONCE_BYTES] for part in parts for at in range(0, len(part), SENT_AT_ONCE_BYTES)]
    end = pieces.pop()
    if len(end) > UNSENT_BYTES:
        pieces.append(end[:-UNSENT_BYTES])
        end = end[-UNSENT_BYTES:]
    return pieces, end
