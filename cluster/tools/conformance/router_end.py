"""Listens for the worker under test, and can start it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from slipstream.cluster.tools.conformance.attempt_answer import ConformanceError
from slipstream.cluster.tools.conformance.worker_connection import WorkerConnection
from slipstream.cluster.tools.conformance.worker_output import WorkerOutput
from slipstream.router.protocol.messages import Hello
from slipstream.router.registry.hello_check import why_refused

START_S = 60.0  # for a worker to start and to connect
RETURN_S = 20.0  # for one that runs to connect again
END_S = 10.0  # from SIGTERM to SIGKILL
TOKEN_VARIABLE = "SLIPSTREAM_WORKER_TOKEN"


class RouterEnd:
    """`command` starts the worker; `{router}` and `{model}` in it are replaced. Without one, a worker that is started
    by hand is waited for. What a worker that is started here prints goes to `output`; None: to the terminal."""

    def __init__(self, model: str, token: str, command: Sequence[str] = (), output: WorkerOutput | None = None) -> None:
        self.model = model
        self._token = token
        self._command = command
        self._output = output.file if output is not None else None
        self._arrived: asyncio.Queue[WorkerConnection] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last: Hello | None = None
        self._current: WorkerConnection | None = None

    async def listen(self, host: str, port: int) -> str:
        """Returns the address for workers. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        at = self._server.sockets[0].getsockname()
        return f"{at[0]}:{at[1]}"

    def _accept(self) -> asyncio.Protocol:
        connection = WorkerConnection()
        self._arrived.put_nowait(connection)
        return connection.protocol

    @property
    def can_start(self) -> bool:
        return bool(self._command)

    async def start_worker(self, address: str) -> None:
        """Starts the worker, if there is a command and it does not run. Raises OSError."""
        if not self._command or (self._process is not None and self._process.returncode is None):
            return
        command = [part.format(router=address, model=self.model) for part in self._command]
        environment = {**os.environ, TOKEN_VARIABLE: self._token}
        self._process = await asyncio.create_subprocess_exec(
            *command, stdout=self._output, stderr=self._output, env=environment
        )

    async def until_exited(self, timeout_s: float = END_S) -> int:
        """The exit code of the worker that was started here. Raises ConformanceError if it goes on."""
        assert self._process is not None
        try:
            return await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            raise ConformanceError(f"the worker did not exit within {timeout_s:g} s") from None

    async def greeted(self, timeout_s: float = RETURN_S) -> WorkerConnection:
        """The next connection, with its Hello. Raises ConformanceError if none comes, or the router would refuse it."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._arrived.get()
        except TimeoutError:
            raise ConformanceError(f"no worker connected within {timeout_s:g} s") from None
        await connection.until(lambda: connection.hello is not None, "Hello as the first message")
        hello = connection.hello
        assert hello is not None
        known = [self._last] if self._last is not None and self._last.worker.name == hello.worker.name else []
        reason = why_refused(hello, self._token, (self.model,), known)
        if reason is not None:
            raise ConformanceError(f"a router refuses this Hello: {reason}")
        self._last = hello
        return connection

    async def welcomed(self, timeout_s: float = RETURN_S) -> WorkerConnection:
        """The next connection, once it has been welcomed and has said its credits."""
        connection = await self.greeted(timeout_s)
        connection.welcome()
        await connection.until(lambda: connection.credits is not None, "Credits after Welcome")
        self._current = connection
        return connection

    @property
    def current(self) -> WorkerConnection:
        """The connection that was welcomed last."""
        assert self._current is not None
        return self._current

    async def close(self) -> None:
        """Ends the worker that was started here, and the listening."""
        if self._server is not None:
            self._server.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
