"""Sends requests to a server over connections that are kept open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from slipstream.cluster.tools.bench.client.bench_target import Target
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.client_connection import ClientConnection
from slipstream.cluster.tools.bench.client.conversation import Turn

CONNECT_TIMEOUT_S = 10.0


class RequestSender:
    """`form` turns a turn, together with those before it, into a request; without it, only complete requests can be
    sent. Answers that take longer than `timeout_s` count as failed. With `reads_bodies` False, each answer with the
    status 200 is good."""

    def __init__(
        self,
        target: Target,
        timeout_s: float,
        form: Callable[[Turn, list[Turn]], bytes] | None = None,
        *,
        reads_bodies: bool = True,
    ) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._form = form
        self._reads_bodies = reads_bodies
        self._context = target.ssl_context()
        self._free: list[ClientConnection] = []
        self._all: set[ClientConnection] = set()

    async def ask(self, turn: Turn, before: Sequence[tuple[Turn, str]], keep_text: bool) -> ClientAnswer:
        """Sends one turn, with those `before` it and their answers. Whatever goes wrong is recorded in the answer."""
        assert self._form is not None, "turns need a form"
        said = [part for earlier, text in before for part in (earlier, Turn(text, None))]
        answer = await self.send(self._form(turn, said), keep_text)
        answer.wanted_tokens, answer.model = turn.output_length, turn.model or self._target.model
        return answer

    async def send(self, request: bytes, keep_text: bool = False) -> ClientAnswer:
        """Sends one request, as `Target.request` makes it. Whatever goes wrong is recorded in the answer."""
        while True:
            begun_s = time.perf_counter()
            is_fresh = not self._free
            try:
                connection = self._free.pop() if self._free else await self._connected()
            except (OSError, TimeoutError) as error:
                return _failed(begun_s, error)
            answer = await self._answer(connection, request, keep_text)
            # A server may close an idle connection just when it is used again, which is not a failure.
            if is_fresh or answer.kind != "connection closed" or answer.status:
                answer.begun_s = begun_s  # includes the time to connect, if necessary
                return answer

    def close(self) -> None:
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._free.clear()

    async def _connected(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(min(CONNECT_TIMEOUT_S, self._timeout_s)):
            _, connection = await loop.create_connection(
                partial(ClientConnection, reads_bodies=self._reads_bodies),
                self._target.host,
                self._target.port,
                ssl=self._context,
            )
        self._all.add(connection)
        return connection

    async def _answer(self, connection: ClientConnection, request: bytes, keep_text: bool) -> ClientAnswer:
        ended = connection.ask(request, keep_text)
        patience = f"no whole answer within {self._timeout_s:g} s"
        timer = asyncio.get_running_loop().call_later(self._timeout_s, connection.give_up, "timeout", patience)
        try:
            answer = await ended
        except asyncio.CancelledError:
            connection.close()  # the server sees a client that leaves
            raise
        finally:
            timer.cancel()
            if connection.is_closed:
                self._all.discard(connection)
        if not connection.is_closed:
            self._free.append(connection)
        return answer


def _failed(begun_s: float, error: BaseException) -> ClientAnswer:
    answer = ClientAnswer(begun_s, ended_s=time.perf_counter())
    if isinstance(error, TimeoutError):
        answer.fail("no connection", "none in time")
    elif isinstance(error, ConnectionRefusedError):
        answer.fail("connection refused", str(error))
    else:
        answer.fail("no connection", str(error) or type(error).__name__)
    return answer
