"""The front processes of a router: started, watched, started anew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from slipstream.router.frontends.connection_counts import ConnectionCounts
from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import (
    FRONTS,
    Begin,
    DispatcherMessage,
    DrainFront,
    Leave,
    Listening,
    ServedLimits,
    TakeOver,
)
from slipstream.router.frontends.front_setup import FrontSetup
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.process.listening import bound_at, cannot_listen, close_all
from slipstream.router.protocol.wire import FrameProtocol, WireError

FIRST_RETRY_S = 0.2
MAX_RETRY_S = 5.0
LOOK_EVERY_S = 5.0
SILENT_S = 60.0  # fronts say something every second
EXIT_TIMEOUT_S = 3.0  # after its connection is closed; then it is killed

log = logging.getLogger(__name__)


class FrontPool:
    """`link_of` makes the dispatcher's end of a connection, given how to send on it. All fronts share one port: each
    listens on it, and the system divides new connections between them. With an `failover` the port is that of the
    router before, and each front continues with the clients of its predecessor. All fronts accept at the one
    `unix_socket`."""

    def __init__(
        self,
        num_fronts: int,
        setup: FrontSetup,
        link_of: Callable[[Callable[[DispatcherMessage], None]], FrontLink],
        failover: FailoverSession | None = None,
        unix_socket: socket.socket | None = None,
    ) -> None:
        self._num_fronts = num_fronts
        self._unix_socket = unix_socket
        self._failover = failover
        self._takes_over = False
        self._setup = setup
        self._link_of = link_of
        self._counts = ConnectionCounts(num_fronts)
        self._reserved: list[socket.socket] = []
        self._fronts: set[_Front] = set()
        self._watchers: list[asyncio.Task[None]] = []  # one a front
        self._watch: asyncio.Task[None] | None = None
        self._drained_s: float | None = None  # when the drain that has begun is to be over (monotonic)

    @property
    def num_connections(self) -> int:
        return sum(front.link.num_connections for front in self._fronts)

    @property
    def pids(self) -> Sequence[int]:
        return [front.process.pid for front in self._fronts]

    async def start(self) -> int:
        """Returns the port when all fronts listen on it, or are there if no clients are to come. Raises OSError if it
        cannot be had or a front cannot serve."""
        if self._failover is not None:
            self._failover.attend()
        port = self._setup.config.http.port if self._setup.is_ending else self._reserve()
        fronts = [self._spawn(slot) for slot in range(1, self._num_fronts + 1)]
        await asyncio.gather(*(front.listens for front in fronts))
        self._watchers = [asyncio.create_task(self._keep(front)) for front in fronts]
        self._watch = asyncio.create_task(self._end_silent())
        return port

    def _reserve(self) -> int:
        """The port that the fronts are to share, from now on ours. Raises OSError."""
        http = self._setup.config.http
        restored = self._failover.listening if self._failover is not None else []
        self._reserved = restored or reserve_port(http.host, http.port)
        if self._failover is not None and not restored:
            self._failover.keep_listening(self._reserved)
        port: int = self._reserved[0].getsockname()[1]
        self._setup = replace(self._setup, config=replace(self._setup.config, http=replace(http, port=port)))
        return port

    def refuse_clients(self) -> None:
        """No new clients from now on. Before `start`: the fronts only continue with those of the previous fronts."""
        self._setup = replace(self._setup, is_ending=True)
        if self._failover is not None:
            self._failover.stop_listening()
        self._close_unix_socket()

    def _close_unix_socket(self) -> None:
        if self._unix_socket is not None:
            self._unix_socket.close()
            self._unix_socket = None

    async def take_over(self) -> None:
        """Has the fronts continue with the clients of their predecessors, from now on also when one is restarted."""
        self._takes_over = True
        for front in self._fronts:
            self._tell_what_to_do(front)

    def send_limits(self, max_model_len: int | None, versions: tuple[str, ...]) -> None:
        """The longest sequence or the versions of the model may have changed."""
        if (max_model_len, versions) != (self._setup.max_model_len, self._setup.versions):
            self._setup = replace(self._setup, max_model_len=max_model_len, versions=versions)
            for front in self._fronts:
                front.protocol.send(ServedLimits(max_model_len, versions))

    def leave(self) -> None:
        """Clients still come and are served, and each connection is closed after its next response."""
        self._setup = replace(self._setup, is_leaving=True)
        for front in self._fronts:
            self._tell_what_to_do(front)

    async def drain(self, deadline_s: float) -> bool:
        """No new connections; returns when all fronts have ended what ran there, True if within `deadline_s`. A front
        that is killed meanwhile is started anew, and drains as well."""
        self.refuse_clients()
        self._drained_s = time.monotonic() + deadline_s
        for front in self._fronts:
            self._tell_what_to_do(front)
        late = set[asyncio.Task[None]]()
        if self._watchers:
            _, late = await asyncio.wait(self._watchers, timeout=deadline_s)
        if self._failover is not None:
            self._failover.farewell()
        return not late

    def _tell_what_to_do(self, front: _Front) -> None:
        """A front that does not listen yet gets the message as soon as it does."""
        if not front.listens.done():
            return
        if self._takes_over and not front.takes_over:
            front.takes_over = True
            front.protocol.send(TakeOver(self._setup.max_model_len, self._setup.versions))
        if self._setup.is_leaving:
            front.protocol.send(Leave())
        if self._drained_s is not None:
            front.protocol.send(DrainFront(max(self._drained_s - time.monotonic(), 0.0)))

    async def stop(self) -> None:
        """Ends all fronts."""
        tasks = [*self._watchers, *([self._watch] if self._watch is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(*map(self._end, list(self._fronts)))
        if self._failover is not None:
            self._failover.close()
        close_all(self._reserved)
        self._close_unix_socket()
        self._counts.close()

    def _spawn(self, slot: int) -> _Front:
        cell = self._counts.take_cell()
        try:
            front = _Front(self._setup, self._link_of, self._counts.fd, cell, slot, self._unix_socket)
        except OSError:
            self._counts.give_back(cell)
            raise
        self._fronts.add(front)
        return front

    async def _keep(self, front: _Front) -> None:
        """Restarts a front whenever it has ended, until it has been drained."""
        retry_s = FIRST_RETRY_S
        while True:
            await asyncio.wait([front.lost])
            if front in self._fronts:
                await self._end(front)
                if self._drained_s is not None and front.process.returncode == 0:
                    return
                log.warning("front process %d has ended with status %s", front.process.pid, front.process.returncode)
            await asyncio.sleep(retry_s)
            try:
                front = self._spawn(front.slot)
                await front.listens
                self._tell_what_to_do(front)
                retry_s = FIRST_RETRY_S
            except OSError as error:
                log.error("a front process does not start: %s", error)
                retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _end_silent(self) -> None:
        """Kills fronts that were stopped or hang, because the system still gives them clients. The next front
        continues with those that have connected."""
        while True:
            due_s = time.monotonic() + LOOK_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = time.monotonic()
            for front in self._fronts:
                if now_s - due_s > LOOK_EVERY_S:  # this process was held up, and has not read what they said
                    front.heard_s = now_s
                elif front.listens.done() and now_s - front.heard_s > SILENT_S:
                    log.warning("front process %d says nothing any more and is killed", front.process.pid)
                    front.process.kill()

    async def _end(self, front: _Front) -> None:
        await front.end()
        if front in self._fronts:
            self._fronts.remove(front)
            self._counts.give_back(front.cell)


class _Front:
    """One front process and the connection to it. `listens` is done when it serves, `lost` when it has ended."""

    def __init__(
        self,
        setup: FrontSetup,
        link_of: Callable[[Callable[[DispatcherMessage], None]], FrontLink],
        counts_fd: int,
        cell: int,
        slot: int,
        unix_socket: socket.socket | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.cell = cell  # in the connection counts
        self.slot = slot  # its slot at the socket holder: its successor has the same
        self.listens: asyncio.Future[None] = loop.create_future()
        self.listens.add_done_callback(lambda future: future.exception())  # read, or the loop would complain
        self.lost: asyncio.Future[None] = loop.create_future()
        self.takes_over = False
        self.heard_s = time.monotonic()
        self.protocol = FrameProtocol(self._received, self._on_lost, vocabulary=FRONTS)
        self.link = link_of(self._send)
        restored = [counts_fd]
        if unix_socket is not None:
            setup = replace(setup, unix_socket_fd=unix_socket.fileno())
            restored.append(unix_socket.fileno())
        ours, theirs = socket.socketpair()
        with theirs:
            # Where this process found its modules, that one shall.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            try:
                self.process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",  # they are on PYTHONPATH
                        "-m",
                        "slipstream.router.frontends.front_process",
                        *map(str, (theirs.fileno(), counts_fd, cell, slot)),
                    ],
                    pass_fds=[theirs.fileno(), *restored],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
            except OSError:
                ours.close()
                raise
        self._opening = loop.create_task(self._open(ours, Begin(pickle.dumps(setup))))

    async def _open(self, ours: socket.socket, begin: Begin) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self.protocol, sock=ours)
        self.protocol.send(begin)

    async def end(self) -> None:
        """Closes the connection, which the process takes for its end, and waits for that."""
        await self._opening
        self.protocol.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self.process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await loop.run_in_executor(None, self.process.wait)

    def _send(self, message: DispatcherMessage) -> None:
        try:
            self.protocol.send(message)
        except WireError as error:  # larger than any frame; streams of this front would miss what was in it
            log.error("cannot send to front process %d: %s", self.process.pid, error)
            self.protocol.abort(error)

    def _received(self, message: Any) -> None:
        self.heard_s = time.monotonic()
        if isinstance(message, Listening):
            self.listens.set_result(None)
        else:
            self.link.received(message)

    def _on_lost(self, reason: Exception | None) -> None:
        self.link.lost()
        if not self.listens.done():
            self.listens.set_exception(OSError("a front process ended before it listened; the log says why"))
        self.lost.set_result(None)


def reserve_port(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to the address, without listening, so that fronts may share it. Raises OSError if another program,
    even a router of the same user that shares its port among fronts, listens there."""
    try:
        alone = bound_at(host, port)
        try:
            port = alone[0].getsockname()[1]
        finally:
            close_all(alone)
        return bound_at(host, port, reuse_port=True)
    except OSError as error:
        raise cannot_listen(error, host, port) from error
