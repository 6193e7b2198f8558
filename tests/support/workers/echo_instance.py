"""An instance without a model: it answers every request with its inputs. Runs as a program; what it does beside that is
its third argument.

    python echo_instance.py PATH_OF_SOCKET LAUNCH SECRET BEHAVIOUR [FILE]
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PREFIX = struct.Struct("<IQ")


def received(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


def send(connection: socket.socket, head: dict[str, Any], payload: bytes = b"") -> None:
    text = json.dumps(head).encode()
    connection.sendall(PREFIX.pack(len(text), len(payload)) + text + payload)


def connected(path: str) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            time.sleep(0.02)
        else:
            return connection


def serve(connection: socket.socket, behaviour: str) -> None:
    while True:
        head_bytes, payload_bytes = PREFIX.unpack(received(connection, PREFIX.size))
        head = json.loads(received(connection, head_bytes))
        payload = received(connection, payload_bytes)
        match head["type"]:
            case "initialize":
                send(connection, {"type": "ready"})
            case "execute":
                if behaviour == "die":
                    print("about to die", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                responses = [
                    {"outputs": request["inputs"], "error": None, "parameters": None} for request in head["requests"]
                ]
                times = {"compute_ns": 0, "input_ns": 0, "output_ns": 0}
                answer = {"type": "executed", "batch": head["batch"], "responses": responses, "error": None, **times}
                send(connection, answer, payload)
            case "finalize" if behaviour != "stubborn":
                print("finalized", flush=True)
                sys.exit(0)


def main(path: str, launch: str, secret: str, behaviour: str, file: str = "") -> None:
    if behaviour == "fail":
        sys.exit("no such model")
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "parent":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(file).write_text(str(child.pid))
    Path(f"/dev/shm/slipstream-{launch}-1").touch()
    state = "new"
    while True:
        connection = connected(path)
        hello = {"protocol": 1, "launch": launch, "secret": secret, "pid": os.getpid(), "memory_id": "", "state": state}
        send(connection, {"type": "hello", **hello})
        state = "ready"
        try:
            serve(connection, behaviour)
        except ConnectionError:
            connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
