"""One front process as the dispatcher's process sees it: started, connected, given the models that it serves."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import (
    FRONTS,
    Begin,
    DispatcherMessage,
    Listening,
    LoadModel,
    ModelLoaded,
    NameModel,
    RemoveModel,
)
from slipstream.router.frontends.front_setup import FrontModel, FrontSetup, served_limits
from slipstream.router.protocol.wire import FrameProtocol, WireError

EXIT_TIMEOUT_S = 3.0  # after its connection is closed; then it is killed

log = logging.getLogger(__name__)


class FrontChild:
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
        self.models = dict(setup.models)  # as the process knows them
        self._read = set(setup.models)
        self._loads: dict[int, asyncio.Future[None]] = {}  # those that are awaited, by their numbers
        self._num_loads = 0
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

    async def load(self, model: FrontModel) -> None:
        """Returns when the process has read a model. Raises ValueError if it cannot, OSError if it has ended."""
        self._num_loads += 1
        number = self._num_loads
        read = self._loads[number] = asyncio.get_running_loop().create_future()
        self._send(LoadModel(pickle.dumps(model), number))
        try:
            await read
        finally:
            del self._loads[number]
        self._read.add(model.name)

    def serve(self, model: FrontModel) -> None:
        """Sends what the process does not know of a model yet."""
        if self.models.get(model.name) == model:
            return
        if model.name not in self._read:
            self._read.add(model.name)
            self._send(LoadModel(pickle.dumps(model)))
        self.models[model.name] = model
        self._send(NameModel(model.name, model.source.aliases, model.is_leaving))
        self._send(served_limits(model))

    def forget(self, name: str) -> None:
        """The process forgets a model, also one that it has only read."""
        self.models.pop(name, None)
        self._read.discard(name)
        self._send(RemoveModel(name))

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
        elif isinstance(message, ModelLoaded):
            self._loaded(message)
        else:
            self.link.received(message)

    def _loaded(self, outcome: ModelLoaded) -> None:
        read = self._loads.get(outcome.number)
        if read is not None and not read.done():
            if outcome.error:
                read.set_exception(ValueError(outcome.error))
            else:
                read.set_result(None)
        elif (
            outcome.error and not outcome.number
        ):  # of a model that the other fronts serve: the next process may be able to read it
            log.error("front process %d cannot read model %r: %s", self.process.pid, outcome.model, outcome.error)
            self.protocol.abort(ConnectionAbortedError(outcome.error))

    def _on_lost(self, reason: Exception | None) -> None:
        self.link.lost()
        for read in self._loads.values():
            if not read.done():
                read.set_exception(OSError(f"front process {self.process.pid} has ended"))
        if not self.listens.done():
            self.listens.set_exception(OSError("a front process ended before it listened; the log says why"))
        self.lost.set_result(None)
