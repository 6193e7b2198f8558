"""A router without a will of its own: a real server that welcomes workers; tests say what to send and see what came."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    Hello,
    Postponed,
    Prefill,
    Rejected,
    Reserve,
    Reserved,
    RouterMessage,
    SamplingParams,
    Start,
    Stats,
    StepOutput,
    TokenChunk,
    Welcome,
    WorkerMessage,
    pack_ids,
)
from slipstream.router.protocol.wire import FrameProtocol, Message
from slipstream.router.tls.link_tls import LinkTlsConfig

M = TypeVar("M")
NO_TLS = LinkTlsConfig()
TIMEOUT_S = 30.0
START_TIMEOUT_S = 120.0  # a busy machine imports torch several times at once
IDLE_STATES = {"free", "cached", "withheld"}


def request(
    request_id: str,
    prompt: Iterable[int],
    *,
    max_tokens: int = 8,
    attempt: int = 0,
    salt: str = "",
    output: Iterable[int] = (),
) -> EngineRequest:
    """Greedy, and never ended by a stop token."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(request_id, attempt, pack_ids(prompt), pack_ids(output), sampling, salt)


class Connection:
    """One connection of a worker, from its Hello on."""

    def __init__(self, hello: Hello, router: ScriptedRouter, protocol: FrameProtocol) -> None:
        self.hello = hello
        self.is_lost = False
        self._router = router
        self._protocol = protocol
        self._changed = router.changed
        self._messages: list[WorkerMessage] = []
        self._seq = 0

    def all(self, kind: type[M]) -> list[M]:
        with self._changed:
            return [message for message in self._messages if isinstance(message, kind)]

    def wait(self, kind: type[M], accept: Callable[[M], bool] = lambda _: True, after: int = 0) -> M:
        """The first message of this kind beyond the first `after` messages that is accepted. Fails if none comes."""

        def found() -> M | None:
            return next((m for m in self._messages[after:] if isinstance(m, kind) and accept(m)), None)

        return self._router.wait(found, f"{kind.__name__} from {self.hello.worker.name}")

    def wait_end_of_transfer(self, request: EngineRequest) -> HandedOff | Failed:
        key = request.request_id, request.attempt

        def found() -> list[HandedOff | Failed] | None:
            ends = [m for m in self._messages if isinstance(m, HandedOff | Failed)]
            return [m for m in ends if (m.request_id, m.attempt) == key] or None

        return self._router.wait(found, f"the pages of {request.request_id} at {self.hello.worker.name}")[0]

    def wait_lost(self) -> None:
        self._router.wait(lambda: self.is_lost or None, f"the end of {self.hello.worker.name}'s connection")

    def wait_failed(self, request_id: str, attempt: int = 0) -> Failed:
        return self.wait(Failed, lambda m: (m.request_id, m.attempt) == (request_id, attempt))

    def wait_failed_or_lost(self, request_id: str) -> Failed | None:
        """None: the worker has ended, without a word about a request that was too late for it."""

        def found() -> tuple[Failed | None] | None:
            failed = next((m for m in self._messages if isinstance(m, Failed) and m.request_id == request_id), None)
            return (failed,) if failed is not None or self.is_lost else None

        return self._router.wait(found, f"an answer of {self.hello.worker.name}")[0]

    def chunks(self, request_id: str, attempt: int = 0) -> list[TokenChunk]:
        outputs = self.all(StepOutput)
        return [c for o in outputs for c in o.chunks if (c.request_id, c.attempt) == (request_id, attempt)]

    def wait_chunks(self, request_id: str, count: int, attempt: int = 0) -> list[TokenChunk]:
        """At least `count` chunks of a request, or all of a finished one."""

        def found() -> list[TokenChunk] | None:
            chunks = self.chunks(request_id, attempt)
            is_over = any(chunk.finish_reason for chunk in chunks)
            return chunks if len(chunks) >= count or is_over else None

        return self._router.wait(found, f"{count} chunks of {request_id} from {self.hello.worker.name}")

    def wait_at_rest(self, after: int = 0) -> Stats:
        """The first Stats beyond the first `after` messages in which no page has an owner."""

        def found() -> Stats | None:
            recent = [m for m in self._messages[after:] if isinstance(m, Stats)]
            return next((s for s in recent if not is_busy(s)), None)

        return self._router.wait(found, f"{self.hello.worker.name} at rest")

    def wait_all_free(self) -> Credits:
        """Until the newest Credits offer every slot and every page."""
        full = self.hello.max_slots, self.hello.num_pages

        def found() -> Credits | None:
            newest = next((m for m in reversed(self._messages) if isinstance(m, Credits)), None)
            return newest if newest and (newest.free_slots, newest.free_pages) == full else None

        return self._router.wait(found, f"{self.hello.worker.name} with all slots and pages free")

    @property
    def num_messages(self) -> int:
        with self._changed:
            return len(self._messages)

    def send(self, message: RouterMessage) -> None:
        self._router.call(self._protocol.send, message)

    def generate(self, request: EngineRequest) -> int:
        """Returns the message's seq."""
        self.send(Generate(self._next_seq(), request))
        return self._seq

    def reserve(self, request: EngineRequest, source: Connection) -> Reserved:
        self.send(Reserve(self._next_seq(), request, source.hello.worker, source.hello.tp))
        return self.wait(Reserved, lambda m: (m.request_id, m.attempt) == (request.request_id, request.attempt))

    def prefill(self, request: EngineRequest, reserved: Reserved) -> int:
        """Returns the message's seq."""
        self.send(Prefill(self._next_seq(), request, reserved.ticket))
        return self._seq

    def start(self, request: EngineRequest, token_ids: tuple[int, ...]) -> None:
        self.send(Start(request.request_id, request.attempt, token_ids))

    def cancel(self, request: EngineRequest) -> None:
        self.send(Cancel(request.request_id, request.attempt))

    def drop(self) -> None:
        self._router.call(self._protocol.abort, None)

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def received(self, message: WorkerMessage) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def lost(self) -> None:
        with self._changed:
            self.is_lost = True
            self._changed.notify_all()


class ScriptedRouter:
    """Listens on 127.0.0.1, on a free port where none is given, its loop on a thread of its own. With `rejection` it
    takes no worker, for that reason, which `is_final` or may change."""

    def __init__(
        self, port: int = 0, rejection: str | None = None, *, is_final: bool = True, tls: LinkTlsConfig = NO_TLS
    ) -> None:
        self.changed = threading.Condition()
        self.port = port
        self._rejection = rejection
        self._is_final = is_final
        self._tls = tls.server_tls("the router's certificate").context if tls.is_on else None
        self._num_rejected = 0
        self._connections: list[Connection] = []
        self._protocols: list[FrameProtocol] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-router")

    def __enter__(self) -> ScriptedRouter:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def wait_for_rejections(self, count: int) -> None:
        """Returns when so many workers have been sent away, or one so often."""
        with self.changed:
            assert self.changed.wait_for(lambda: self._num_rejected >= count, TIMEOUT_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connection(self, name: str, after: Connection | None = None) -> Connection:
        """The worker's newest connection, waited for; with `after` one that came later than that."""

        def found() -> Connection | None:
            mine = [c for c in self._connections if c.hello.worker.name == name]
            return mine[-1] if mine and mine[-1] is not after else None

        return self.wait(found, f"a connection of {name}", START_TIMEOUT_S)

    def wait(self, found: Callable[[], M | None], what: str, timeout_s: float = TIMEOUT_S) -> M:
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while (result := found()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
            return result

    def read_what_has_come(self) -> None:
        """Returns once what has arrived at the sockets until now has been read."""

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(turns(), self._loop).result(TIMEOUT_S)

    def call(self, function: Callable[[M], None], argument: M) -> None:
        self._loop.call_soon_threadsafe(function, argument)

    async def _listen(self) -> asyncio.Server:
        return await self._loop.create_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)

    async def _close(self) -> None:
        self._server.close()
        accepted = asyncio.all_tasks() - {asyncio.current_task()}  # the loop's own, of connections that are being made
        await asyncio.gather(*accepted, return_exceptions=True)
        for protocol in self._protocols:  # those of workers that have not said Hello among them
            protocol.abort()
        await self._server.wait_closed()

    def _accept(self) -> FrameProtocol:
        connection: list[Connection] = []

        def received(message: Message) -> None:
            if isinstance(message, Hello) and self._rejection is not None:
                protocol.send(Rejected(self._rejection) if self._is_final else Postponed(self._rejection))
                protocol.close()
                with self.changed:
                    self._num_rejected += 1
                    self.changed.notify_all()
            elif isinstance(message, Hello):
                connection.append(Connection(message, self, protocol))
                with self.changed:
                    self._connections.append(connection[0])
                    self.changed.notify_all()
                protocol.send(Welcome("scripted"))
            else:
                assert isinstance(message, WorkerMessage)
                connection[0].received(message)

        protocol = FrameProtocol(received, lambda _: connection[0].lost() if connection else None)
        self._protocols.append(protocol)
        return protocol


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which no program listens so far, and which only a program that asks for it gets."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may take it
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def is_busy(stats: Stats) -> bool:
    return any(count for state, count in stats.pages if state not in IDLE_STATES)
