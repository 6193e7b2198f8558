"""The front processes of a router: started, watched, started anew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.router.frontends.connection_counts import ConnectionCounts
from slipstream.router.frontends.front_child import FrontChild
from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import (
    DispatcherMessage,
    DrainFront,
    Leave,
    TakeOver,
)
from slipstream.router.frontends.front_setup import FrontModel, FrontSetup
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.tls import http_tls
from slipstream.router.process.listening import bound_at, cannot_listen, close_all
from slipstream.router.registry.worker_abilities import NO_ABILITIES, WorkerAbilities
from slipstream.router.tls.server_tls import ServerTls

FIRST_RETRY_S = 0.2
MAX_RETRY_S = 5.0
LOOK_EVERY_S = 5.0
SILENT_S = 60.0  # fronts say something every second
LOAD_TIMEOUT_S = 120.0  # for a tokenizer, which takes seconds where it is converted

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
        tls = setup.config.http.tls
        self._tls = http_tls(tls) if tls.is_on else None  # its fronts serve it
        self._link_of = link_of
        self._counts = ConnectionCounts(num_fronts)
        self._reserved: list[socket.socket] = []
        self._fronts: set[FrontChild] = set()
        self._watchers: list[asyncio.Task[None]] = []  # one a front
        self._watch: asyncio.Task[None] | None = None
        self._drained_s: float | None = None  # when the drain that has begun is to be over (monotonic)

    @property
    def tls(self) -> ServerTls | None:
        """As its fronts have it, who take up renewed files by themselves."""
        if self._tls is not None:
            self._tls.look()
        return self._tls

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
        for front in fronts:
            self._tell_what_to_do(front)
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

    def send_limits(
        self,
        name: str,
        max_model_len: int | None,
        versions: tuple[str, ...],
        shares: tuple[tuple[str, float], ...],
        abilities: WorkerAbilities = NO_ABILITIES,
    ) -> None:
        """The longest sequence, the versions of a model, their shares or the workers' abilities may have changed. A
        model that the fronts do not serve is left out."""
        model = self._setup.models.get(name)
        if model is not None:
            now = replace(model, max_model_len=max_model_len, versions=versions, shares=shares, abilities=abilities)
            if now != model:
                self.serve_model(now)

    async def load_model(self, model: FrontModel) -> None:
        """Has every front read one more model, and does not serve it yet. Raises ValueError if one of them cannot read
        it; then none has it."""
        fronts = self._listening()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S), asyncio.TaskGroup() as group:
                for front in fronts:
                    group.create_task(front.load(model))
        except BaseException as error:
            for front in fronts:
                front.forget(model.name)
            if isinstance(error, TimeoutError):
                raise ValueError(f"no front has read the model {model.name!r} within {LOAD_TIMEOUT_S:g} s") from error
            if isinstance(error, BaseExceptionGroup):
                reason = error.exceptions[0]
                raise ValueError(f"a front cannot serve the model {model.name!r}: {reason}") from reason
            raise

    def serve_model(self, model: FrontModel) -> None:
        """Serves a model that has been loaded."""
        self._set_model(model)
        for front in self._listening():
            front.serve(model)

    def set_aliases(self, name: str, aliases: tuple[str, ...]) -> None:
        """An alias that another model has moves to this one."""
        model = self._setup.models[name]
        self.serve_model(replace(model, source=replace(model.source, aliases=aliases)))
        for other in list(self._setup.models.values()):
            kept = tuple(alias for alias in other.source.aliases if alias not in aliases)
            if other.name != name and kept != other.source.aliases:
                self.serve_model(replace(other, source=replace(other.source, aliases=kept)))

    def model_leaves(self, name: str) -> None:
        """No front begins another answer of this model."""
        self.serve_model(replace(self._setup.models[name], is_leaving=True))

    def remove_model(self, name: str) -> None:
        """The fronts forget a model, be it served or only loaded."""
        models = {other: model for other, model in self._setup.models.items() if other != name}
        self._setup = replace(self._setup, models=models)
        for front in self._listening():
            front.forget(name)

    def _set_model(self, model: FrontModel) -> None:
        self._setup = replace(self._setup, models={**self._setup.models, model.name: model})

    def _listening(self) -> list[FrontChild]:
        """The fronts that serve. The others get what has changed as soon as they do."""
        return [front for front in self._fronts if front.listens.done() and not front.lost.done()]

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

    def _tell_what_to_do(self, front: FrontChild) -> None:
        """A front that does not listen yet gets the message as soon as it does."""
        if not front.listens.done():
            return
        for name in front.models.keys() - self._setup.models.keys():
            front.forget(name)
        for model in self._setup.models.values():
            front.serve(model)
        if self._takes_over and not front.takes_over:
            front.takes_over = True
            front.protocol.send(TakeOver())
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

    def _spawn(self, slot: int) -> FrontChild:
        cell = self._counts.take_cell()
        try:
            front = FrontChild(self._setup, self._link_of, self._counts.fd, cell, slot, self._unix_socket)
        except OSError:
            self._counts.give_back(cell)
            raise
        self._fronts.add(front)
        return front

    async def _keep(self, front: FrontChild) -> None:
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

    async def _end(self, front: FrontChild) -> None:
        await front.end()
        if front in self._fronts:
            self._fronts.remove(front)
            self._counts.give_back(front.cell)


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
