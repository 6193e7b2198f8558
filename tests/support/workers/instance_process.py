"""An instance of a Python model, and the plain router it talks to, which does what a test says."""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
import socket
import struct
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.workers.backends.python.launch import InstanceLaunch, launch_command

PREFIX = struct.Struct("<IQ")
TIMEOUT_S = 20
LAUNCHES = itertools.count()


class Peer:
    """One connection of an instance."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_S)
        self._connection = connection
        self.payload = b""  # of the last frame
        self._unread: list[tuple[dict[str, Any], bytes]] = []

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        head = json.dumps(message).encode()
        self._connection.sendall(PREFIX.pack(len(head), len(payload)) + head + payload)

    def receive(self, kind: str) -> dict[str, Any]:
        """The next message of this kind; others wait until they are asked for."""
        for index, (head, payload) in enumerate(self._unread):
            if head["type"] == kind:
                del self._unread[index]
                self.payload = payload
                return head
        while True:
            head_bytes, payload_bytes = PREFIX.unpack(self._exactly(PREFIX.size))
            head = json.loads(self._exactly(head_bytes))
            payload = self._exactly(payload_bytes)
            if head["type"] == kind:
                self.payload = payload
                return head
            self._unread.append((head, payload))

    def has_unread(self, kind: str) -> bool:
        return any(head["type"] == kind for head, _ in self._unread)

    def array(self, tensor: list[Any]) -> np.ndarray[Any, Any]:
        """A tensor of numbers in the last frame, or in shared memory."""
        _, datatype, shape, place = tensor
        kinds = {"FP32": np.float32, "INT32": np.int32, "UINT8": np.uint8, "INT64": np.int64, "BOOL": np.bool_}
        if len(place) == 2:
            data = self.payload[place[0] : place[0] + place[1]]
        else:
            with open(f"/dev/shm/{place[0]}", "rb") as file:
                file.seek(place[1])
                data = file.read(place[2])
        return np.frombuffer(data, dtype=kinds[datatype]).reshape(shape)

    def close(self) -> None:
        self._connection.close()

    def _exactly(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            part = self._connection.recv(num_bytes - len(data))
            if not part:
                raise EOFError("the instance closed the connection")
            data += part
        return bytes(data)


class InstanceProcess:
    """A started instance. `peer` is its present connection."""

    def __init__(self, folder: Path, code: str, environment: dict[str, str] | None = None) -> None:
        self.version_folder = folder / "model" / "1"
        self.version_folder.mkdir(parents=True)
        (self.version_folder / "model.py").write_text(textwrap.dedent(code), encoding="utf-8")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "router"))
        self._listener.listen()
        self._listener.settimeout(TIMEOUT_S)
        self.launch = f"test{os.getpid()}x{next(LAUNCHES)}"
        command = launch_command(
            InstanceLaunch(
                launch=self.launch,
                secret="secret",
                address=f"unix:{folder / 'router'}",
                memory_id="memory",
                name="model_0_0",
                version="1",
                folder=folder / "model",
                model_file=self.version_folder / "model.py",
                environment=environment or {},
            ),
            folder / "environments",
        )
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command.argv, env=command.env, stdout=log, stderr=log)
        self.hello = self.accept()

    def accept(self) -> dict[str, Any]:
        """Takes the instance's next connection; its `hello`."""
        connection, _ = self._listener.accept()
        self.peer = Peer(connection)
        return self.peer.receive("hello")

    def initialize(
        self, outputs: dict[str, str], *, is_decoupled: bool = False, inline_bytes: int = 65536, **args: str
    ) -> None:
        self.peer.send(
            {
                "type": "initialize",
                "args": {"model_name": "model", "model_config": "{}", **args},
                "inline_bytes": inline_bytes,
                "shares_memory": True,
                "outputs": outputs,
                "is_decoupled": is_decoupled,
            }
        )
        self.peer.receive("ready")

    def execute(self, *requests: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        """Executes a batch; `executed`."""
        self.start_execution(*requests, payload=payload)
        return self.peer.receive("executed")

    def start_execution(self, *requests: dict[str, Any], payload: bytes = b"") -> None:
        self.peer.send({"type": "execute", "batch": 1, "requests": list(requests)}, payload)

    def finalize(self) -> int:
        self.peer.send({"type": "finalize"})
        return self.process.wait(TIMEOUT_S)

    def end(self) -> None:
        self.peer.close()
        self._listener.close()
        self.process.kill()
        self.process.wait()
        for file in Path("/dev/shm").glob(f"slipstream-{self.launch}-*"):
            file.unlink()


@contextmanager
def running_instance(folder: Path, code: str, environment: dict[str, str] | None = None) -> Iterator[InstanceProcess]:
    instance = InstanceProcess(folder, code, environment)
    try:
        yield instance
    finally:
        instance.end()


def request(n: int, inputs: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A request of `execute`."""
    return {
        "n": n,
        "id": "",
        "correlation_id": 0,
        "flags": 0,
        "timeout_us": 0,
        "priority": 0,
        "parameters": None,
        "outputs": None,
        "inputs": inputs or [],
        **fields,
    }


@contextmanager
def shared_file(key: str, data: bytes) -> Iterator[mmap.mmap]:
    """Shared memory of the router."""
    path = Path("/dev/shm") / key
    path.write_bytes(data)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        fcntl.flock(file, fcntl.LOCK_EX)  # instance hosts remove what nobody has locked
        try:
            yield mapping
        finally:
            path.unlink()
