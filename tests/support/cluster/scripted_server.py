"""A server of the OpenAI API that answers as a test wants, byte for byte, on a thread of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Writing = Callable[[asyncio.StreamWriter, dict[str, Any], int], Awaitable[None]]


@dataclass
class ScriptedServer:
    """`answer(writer, body, number)` writes the whole response to the request of that number, from 0."""

    answer: Writing
    cards: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "m"}])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    num_connections: int = 0
    port: int = 0
    key: str = ""  # that every request must have
    tls: ssl.SSLContext | None = None
    stopped: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
                data = await reader.readexactly(int(fields.get("content-length", 0)))
                if self.key and fields.get("authorization") != f"bearer {self.key}":
                    whole(writer, 401, {"error": {"message": "a key is needed"}})
                elif head.startswith("GET"):
                    whole(writer, 200, {"object": "list", "data": self.cards})
                else:
                    body = json.loads(data)
                    number = len(self.bodies)
                    self.bodies.append(body)
                    self.heads.append(head)
                    await self.answer(writer, body, number)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def whole(writer: asyncio.StreamWriter, status: int, content: dict[str, Any], lines: str = "") -> None:
    data = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{lines}content-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


def begin(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")


def event(content: dict[str, Any] | str) -> bytes:
    return b"data: %b\n\n" % (content if isinstance(content, str) else json.dumps(content)).encode()


def piece(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def usage(prompt: int, output: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


async def normal(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    """As many tokens as asked for, one a chunk."""
    count = body.get("max_tokens", 3)
    if not body.get("stream"):
        choice = {"message": {"content": "ab"}}
        whole(writer, 200, {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
        return
    begin(writer)
    chunk(writer, event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
    for index in range(count):
        chunk(writer, piece(f"t{index} "))
        await writer.drain()
    chunk(writer, usage(7, count) + event("[DONE]"))
    end(writer)


@contextmanager
def scripted(
    answer: Writing = normal,
    cards: list[dict[str, Any]] | None = None,
    key: str = "",
    tls: ssl.SSLContext | None = None,
) -> Iterator[ScriptedServer]:
    """Listens on a free port until the block ends. `stopped` closes it from within an answer."""
    server = ScriptedServer(answer, key=key, tls=tls)
    if cards is not None:
        server.cards = cards
    started, loop = threading.Event(), asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        server.stopped = listening.close
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await stopping.wait()
        listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(main())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
