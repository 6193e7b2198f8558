"""The life of an instance: it connects, completes and initialises its model, executes batches, and finalises."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections import deque
from typing import Any, Callable

from slipstream.workers.backends.python.instance.hosted_model import HostedModel, InstanceMemory, InstanceRunner
from slipstream.workers.backends.python.instance.memory.input_memory import InputMemory
from slipstream.workers.backends.python.instance.memory.output_memory import OutputMemory
from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles
from slipstream.workers.backends.python.instance.model_calls import OutgoingCalls
from slipstream.workers.backends.python.instance.parent_death import end_with_parent
from slipstream.workers.backends.python.instance.python_model import PythonModel
from slipstream.workers.backends.python.instance.server_calls import ServerCalls
from slipstream.workers.backends.python.instance.settings import Settings, take_settings
from slipstream.workers.backends.python.instance.wire.frames import ConnectionLostError, FrameMessage, encode_head
from slipstream.workers.backends.python.instance.wire.router_link import InstanceRouterLink, connect
from slipstream.workers.backends.python.instance.wire.tensor_writer import TensorWriter
from slipstream.workers.backends.python.model_api.server_link import PROCESS, NoServer

PROTOCOL = 1
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 0.1


class Terminated(BaseException):
    """SIGTERM, while nothing is executed."""


class Instance:
    """One instance of one model. The main thread runs all of it: it waits for commands, and executes them."""

    def __init__(self, settings: Settings, server: ServerCalls, model: HostedModel) -> None:
        self._settings = settings
        self._server = server
        self._model = model
        self._commands: deque[FrameMessage] = deque()
        self._outputs = OutputMemory(f"slipstream-{settings.launch}")
        files = SharedFiles()
        self._memory = InstanceMemory(files, InputMemory(files), TensorWriter(self._outputs, files))
        self._runner: InstanceRunner | None = None
        self._is_idle = True  # nothing is executed: SIGTERM may interrupt it
        self._is_terminated = False

    def run(self) -> int:
        """Until the router finalises it; the exit code."""
        PROCESS.link = self._server
        try:
            while True:
                code = self._serve(self._connect())
                if code is not None:
                    return code
        except Terminated:
            self._finalize()
            return 0

    def terminate(self, *_: Any) -> None:
        """The handler of SIGTERM: the model is finalised, after what it executes now."""
        self._is_terminated = True
        if self._is_idle:
            raise Terminated

    def _serve(self, link: InstanceRouterLink) -> int | None:
        """Executes what comes on a connection, until that is lost or the instance ends; then the exit code."""
        try:
            while True:
                link.wait_until(self._has_command)
                self._is_idle = False
                code = self._handle(self._commands.popleft(), link)
                if code is not None:
                    return code
                self._is_idle = True
                if self._is_terminated:
                    raise Terminated
        except ConnectionLostError as error:
            print(f"connection to the router lost: {error}", file=sys.stderr)
        self._end_connection(link)
        return None

    def _has_command(self) -> bool:
        return bool(self._commands)

    def _handle(self, message: FrameMessage, link: InstanceRouterLink) -> int | None:
        """Executes a command; the exit code, if it was the last."""
        if message.type == "execute":
            self._execute(message, link)
            return None
        if message.type == "finalize":
            self._finalize()
            return 0
        if message.type == "refused":
            print(f"the router refuses this instance: {message.head['reason']}", file=sys.stderr)
            return 1
        try:
            if message.type == "complete_config":
                self._complete_config(message, link)
            else:
                self._initialize(message, link)
        except BaseException as exception:  # SystemExit and the like are failures of the model, too
            text, code = self._model.failure_of(exception)
            print(text, file=sys.stderr)
            link.send(encode_head({"type": "failed", "error": text, "code": code}), [], 0)
            return 1
        return None

    def _complete_config(self, message: FrameMessage, link: InstanceRouterLink) -> None:
        completed = self._model.complete_config(message.head["config"])
        link.send(encode_head({"type": "completed", "config": completed}), [], 0)

    def _initialize(self, message: FrameMessage, link: InstanceRouterLink) -> None:
        head = message.head
        self._memory.writer.configure(head["inline_bytes"], head["shares_memory"])
        self._runner = self._model.initialize(head, self._memory)
        self._server.may_call_models = True
        link.send('{"type":"ready"}', [], 0)

    def _execute(self, message: FrameMessage, link: InstanceRouterLink) -> None:
        assert self._runner is not None, "execute before initialize"
        server = self._server
        requests = message.head["requests"]
        server.parent_n = requests[0]["n"] if requests else None
        server.defers_metrics = True
        self._runner.execute(message, link)
        server.defers_metrics = False
        server.send_metrics()

    def _finalize(self) -> None:
        self._server.may_call_models = False
        self._model.finalize()
        self._outputs.begin_again()

    def _connect(self) -> InstanceRouterLink:
        """Tries until the router is there: for as long as the instance host lives, whose end is this process's."""
        wait_s = FIRST_RETRY_S
        while True:
            try:
                connection = connect(self._settings.address)
                break
            except OSError as error:
                print(f"no connection to the router at {self._settings.address}: {error}", file=sys.stderr)
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_RETRY_S)
        link = InstanceRouterLink(connection, self._dispatch)
        self._calls = OutgoingCalls(link, self._memory.writer, self._outputs, self._memory.inputs)
        self._server.connected(link, self._calls)
        link.send(encode_head(self._hello()), [], 0)
        return link

    def _hello(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "launch": settings.launch,
            "secret": settings.secret,
            "pid": os.getpid(),
            "memory_id": settings.memory_id,
            "state": "new" if self._runner is None else "ready",
        }

    def _end_connection(self, link: InstanceRouterLink) -> None:
        """What was not answered never will be."""
        link.close()
        self._calls.fail_all()
        if self._runner is not None:
            self._runner.drop_all()
        self._commands.clear()
        self._outputs.begin_again()

    def _dispatch(self, message: FrameMessage) -> None:
        """Takes a message in the thread that has read it."""
        kind = message.type
        if kind in COMMANDS:
            self._commands.append(message)
        elif kind == "release":
            for key, offset in message.head["places"]:
                self._outputs.release(key, offset)
        elif kind in ("call_response", "control_result"):
            self._calls.received(message)
        elif kind == "cancel":
            if self._runner is not None:
                self._runner.cancel(message.head["n"])
        else:
            raise ConnectionLostError(f"an unknown message, {kind!r}")


COMMANDS = frozenset(("execute", "complete_config", "initialize", "finalize", "refused"))


def forget_server() -> None:
    """In a child that the model forks: the connection is the parent's, and signals have their usual effect."""
    PROCESS.link = NoServer()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignore_signal(*_: Any) -> None:
    """Ctrl-C reaches all processes of a terminal; the router ends its instances in order."""


def run_python_model(import_path: str) -> int:
    """Runs the instance of a Python model; the exit code."""
    sys.path.append(import_path)
    return run(python_model)


def python_model(settings: Settings, server: ServerCalls) -> HostedModel:
    return PythonModel(settings, lambda text: server.log("error", text, __file__, 0))


def run(make_model: Callable[[Settings, ServerCalls], HostedModel]) -> int:
    """Runs the instance that the environment describes; the exit code."""
    settings = take_settings()
    end_with_parent(settings.parent_pid)
    signal.signal(signal.SIGINT, ignore_signal)
    os.register_at_fork(after_in_child=forget_server)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if importlib.util.find_spec("numpy") is None:
        print("the interpreter of this model has no numpy", file=sys.stderr)
        return 1
    server = ServerCalls(settings.name, settings.model_file)
    instance = Instance(settings, server, make_model(settings, server))
    signal.signal(signal.SIGTERM, instance.terminate)
    return instance.run()
