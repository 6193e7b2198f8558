"""One client connection: reads requests, runs their handlers one after the other, notices when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Generic, cast

from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.exchange import UNSENT_BYTES, Exchange, Handler
from slipstream.router.http.http_error import HttpError, internal_error
from slipstream.router.http.observer import AnswerPhase, C, ConnectionObserver
from slipstream.router.http.owner import ConnectionOwner
from slipstream.router.http.reader import Request, RequestReader
from slipstream.router.http.restored_connection import RestoredConnection
from slipstream.router.http.timers import ConnectionTimers

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 256 * 1024  # a client may send so much of its next requests while one is running
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Python 3.11 takes 0.1 us to find a member of an enumeration, and one is needed for each part of an answer.
STREAMING, ENDED, CLOSING = AnswerPhase.STREAMING, AnswerPhase.ENDED, AnswerPhase.CLOSING


class HttpConnection(asyncio.BufferedProtocol, Generic[C]):
    """Reading does not stop while a response is made, because only a read shows that the client has left. What a client
    sends ahead is therefore bounded by `READ_AHEAD_BYTES`; past that the rest is thrown away and the connection is
    closed after the response that is under way. Once all of a response has been given to the socket, its client may
    have it and go on, so reading then stops until the handler is done. Nor does the next request begin before the
    client has read enough of the responses before it: they would pile up here.

    A client that shuts down its sending side counts as gone, as in most servers: there is no way to tell it from
    one that has left.

    A `restored` connection goes on where another process has left it.
    """

    def __init__(
        self,
        config: HttpConfig,
        handler: Handler[C],
        owner: ConnectionOwner[C],
        observer: ConnectionObserver[C],
        restored: RestoredConnection[C] | None = None,
    ) -> None:
        self._handler = handler
        self._owner = owner
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        max_header_bytes, max_body_bytes = config.max_header_kib * 1024, config.max_body_mib * 1024 * 1024
        self._reader = RequestReader(
            max_header_bytes, max_body_bytes, owner.check_caller, config.path_prefix, owner.body_places
        )
        self._cors = owner.cors
        self._pending: deque[Request | HttpError] = deque()
        self._buffer: memoryview  # of the latest read
        self._transport: asyncio.Transport
        self._fills_body = False  # the latest read, of a large body
        self._is_tls = False
        self._exchange: Exchange[C] | None = None
        self._task: asyncio.Task[None] | None = None
        self._discards_input = False
        self._has_stopped_reading = False
        self._bytes_ahead = 0
        self._timers = ConnectionTimers(self, config, self._loop)
        self._restored = restored  # until its exchange goes on

    @property
    def date(self) -> str:
        return self._owner.date

    @property
    def draining(self) -> bool:
        return self._owner.leaving

    @property
    def client_address(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    def close_when_idle(self) -> None:
        """Close after the request that is running or on its way, if any."""
        if self._exchange is not None:
            self._exchange.keep_alive = False
        elif self._reader.state not in ("header", "body"):
            self.close()

    def limit_unsent(self, max_bytes: int) -> None:
        if not self._is_tls and not self._transport.is_closing():  # TLS keeps only what it has encrypted
            self._transport.set_write_buffer_limits(high=max_bytes)

    def send(self, data: bytes | memoryview) -> None:
        if self._transport.is_closing():
            return  # the client has left, which the handler may not have heard yet
        exchange = self._exchange
        if exchange is not None and not exchange.ended:
            phase = STREAMING
        else:
            phase = ENDED if exchange is not None and exchange.keep_alive else CLOSING
        self._observer.sending(data, phase)
        self._transport.write(data)

    def abort(self) -> None:
        """Cut the connection; what was not sent is lost, a running handler is cancelled."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        sock: socket.socket = self._transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_tls = self._transport.get_extra_info("ssl_object") is not None
        admittance = self._owner.joined(self)
        if self._restored is not None:
            self._go_on(self._restored)
            return
        if admittance == "cut_off":
            self._transport.abort()
            return
        if admittance == "turned_away":
            self._handler = self._owner.turn_away
        if admittance == "turned_away" or self._owner.draining:  # it had come before the listening socket was closed
            self._timers.hurry()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timers.stop()
        self._reader.close()
        self._observer.closed(self._task)
        self._drop_pending()
        if self._task is not None:
            self._task.cancel()
        else:
            self._owner.left(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._reader.body_room
        self._fills_body = room is not None and not self._discards_input and not self._is_ahead
        if room is not None and self._fills_body:
            self._observer.read_buffer(into_body=True)
            self._buffer = room
        else:
            self._buffer = self._observer.read_buffer()
        return self._buffer

    @property
    def _is_ahead(self) -> bool:
        """A request waits or runs while the client sends more."""
        return self._exchange is not None or bool(self._pending)

    def buffer_updated(self, nbytes: int) -> None:
        if self._discards_input:
            return
        if self._fills_body:
            self._observer.received(self._buffer[:nbytes], False)
            self._pending.extend(self._reader.filled(nbytes))
            self._advance()
            return
        data = self._buffer[:nbytes].tobytes()
        is_ahead = self._is_ahead
        self._observer.received(data, is_ahead)
        if is_ahead:
            self._bytes_ahead += len(data)
            if self._bytes_ahead > READ_AHEAD_BYTES and not self._stop_reading():
                self._discards_input = True
                if self._exchange is not None:
                    self._exchange.keep_alive = False  # what was thrown away cannot be answered
                return
        self._pending.extend(self._reader.feed(data))
        self._advance()

    def _stop_reading(self) -> bool:
        """Until the handler is done, if nothing of its response is left to send."""
        if self._exchange is None or not self._exchange.ended:
            return False
        if not self._has_stopped_reading:
            self._has_stopped_reading = True
            self._transport.pause_reading()
        return True

    def eof_received(self) -> bool:
        if self._exchange is None:
            self.close()
        else:
            self._transport.abort()
        return not self._is_tls  # closing is done here, after what is still unsent; with TLS there is no half of it

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()
        self._timers.watch_writes()

    def resume_writing(self) -> None:
        self._timers.end_watching_writes()
        if self._exchange is not None:
            self._exchange.resume()
        elif self._pending:
            self._advance()

    def _advance(self) -> None:
        if self._exchange is None and self._pending:
            if not self._timers.holds_writes:  # else `resume_writing` goes on once the client has read
                self._begin(self._pending.popleft())
        elif self._exchange is None and self._reader.expects_continue:
            self._reader.expects_continue = False
            self._observer.sending(CONTINUE, AnswerPhase.IDLE)
            self._transport.write(CONTINUE)
        self._watch()

    def _begin(self, request: Request | HttpError) -> None:
        restored, self._restored = self._restored, None
        head_sent = restored is not None and restored.head_sent
        if isinstance(request, HttpError):
            if head_sent:
                self.abort()  # it was let in before, and a part of its answer has left already
            else:
                self._refuse(request)
            return
        is_repeated = restored is not None and restored.is_running
        self._exchange = Exchange(request, self, self._observer.begun(), is_repeated=is_repeated, head_sent=head_sent)
        if self._cors is not None:
            self._exchange.cors_lines = self._cors.lines_of(request)
        if self._discards_input:
            self._exchange.keep_alive = False
        self._task = self._loop.create_task(self._serve(request, self._exchange))

    async def _serve(self, request: Request, exchange: Exchange[C]) -> None:
        """Run the handler. The one place where a failure of any kind becomes an answer."""
        try:
            await self._handler(request, exchange)
            if not exchange.ended:
                raise RuntimeError(f"{request.method} {request.path} was left without an answer")
        except HttpError as error:
            exchange.fail(error)
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            exchange.fail(internal_error())
        finally:
            drop_body(request)
            self._served(exchange)

    def _served(self, exchange: Exchange[C]) -> None:
        self._exchange = None
        self._task = None
        if not self._pending:
            self._bytes_ahead = 0
        if self._transport.is_closing():
            self._owner.left(self)
            return
        if self._has_stopped_reading:
            self._has_stopped_reading = False
            self._transport.resume_reading()
        if not exchange.keep_alive or self._owner.draining:
            if self._discards_input or self._reader.state != "idle":
                self._close_after_input()
            else:
                self.close()
        else:
            self._observer.ended(self._transport, not self._pending and self._reader.state == "idle")
            self._advance()

    def _refuse(self, error: HttpError) -> None:
        unread = Request("", "", "", {}, b"", keep_alive=False, http10=False)
        exchange = Exchange(unread, self, None)
        exchange.error_form = self._owner.error_form_of(self._reader.path)
        if self._cors is not None:
            exchange.cors_lines = self._cors.lines_for(self._reader.origin)
        exchange.fail(error)
        self._close_after_input()

    def _go_on(self, restored: RestoredConnection[C]) -> None:
        """Continues what another process has begun."""
        if restored.unsent:
            self._transport.write(restored.unsent)
        if restored.phase == CLOSING:
            self._close_after_input()
            return
        if restored.refusal is not None:
            self._refuse(restored.refusal)
            return
        if restored.request:
            self._pending.extend(self._reader.feed(restored.request))
            if restored.continue_sent:
                self._reader.expects_continue = False
        self._advance()
        if self._owner.draining:
            self.close_when_idle()

    def close(self) -> None:
        """Close once everything is sent, or after `write_timeout_s` if the client does not read."""
        self._drop_pending()
        self._timers.stop_waiting()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._timers.watch_writes()

    def _close_after_input(self) -> None:
        """Close although the client is still sending. Closing at once would reset the connection, and the client
        would lose the response: so shut down our side and throw away what comes, for a while."""
        self._discards_input = True
        self._drop_pending()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timers.linger()

    def _drop_pending(self) -> None:
        for request in self._pending:
            drop_body(request)
        self._pending.clear()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def _watch(self) -> None:
        """Let the timers know what the connection is waiting for."""
        if self._discards_input or self._transport.is_closing():
            return
        state = self._reader.state
        is_idle = self._exchange is None and not self._pending
        awaited = state if state == "header" or state == "body" else "idle" if is_idle else None
        self._timers.wait_for(awaited, self._reader.progress)

    def read_timed_out(self, what: str) -> None:
        """A part of a request did not come in time."""
        error = HttpError(408, f"The {what} of the request did not arrive in time.", code="request_timeout")
        self._reader.refuse(error)
        self._pending.extend(self._reader.take())
        self._advance()

    def release_memory(self) -> bool:
        """Give back what a connection at rest does not need. False if it is still needed."""
        return not self._transport.get_write_buffer_size() and self._observer.release()


def drop_body(request: Request | HttpError) -> None:
    """Releases the large body of a request that its handler has not taken."""
    if isinstance(request, Request) and request.large_body is not None:
        request.large_body.release()
