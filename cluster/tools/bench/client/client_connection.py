"""A streaming client that costs little, because it shares the machine with the server that it measures.

While events arrive, they are only searched for text. Only the last ones, with usage, finish and errors, are parsed; all
of them are if a conversation needs the text.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any, cast

import httptools
import orjson

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer

# A field with text that is not empty. As in AIPerf, the name of a called function counts as text, too.
TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments|function": ?\{"name)": ?"(?!")')
PLAIN, PLAIN_EMPTY = b'"content":"', b'"content":""'  # the form that most servers write, found at a fifth of the cost
NUM_LAST_READS = 8  # how many reads are kept for the end, where usage, the finish and errors are
MAX_ERROR_BYTES = 65536
MAX_REST_BYTES = 64 * 1024 * 1024  # the largest event, or answer in one piece


class ClientConnection(asyncio.Protocol):
    """One persistent connection, for one request at a time. With `quick_ack`, each read is acknowledged at once. With
    `reads_bodies` False, a whole answer with the status 200 is good whatever is in it, and its text is all of it."""

    def __init__(self, quick_ack: bool = False, *, reads_bodies: bool = True) -> None:
        self._quick_ack = quick_ack
        self._reads_bodies = reads_bodies
        self._answer = ClientAnswer(0.0)
        self._ended: asyncio.Future[ClientAnswer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._keep_text = False
        self._is_stream = False
        self._is_framed = False  # whether the head says where the body ends; otherwise it ends with the connection
        self._rest = bytearray()  # an incomplete event, or a body that is not a stream
        self._last: deque[bytes] = deque(maxlen=NUM_LAST_READS)
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from it
        connected: socket.socket = transport.get_extra_info("socket")
        self._socket = connected

    def ask(self, request: bytes, keep_text: bool = False) -> asyncio.Future[ClientAnswer]:
        """Sends a request. The future always yields an answer, which says itself whether it is good, unless it is
        cancelled."""
        self._parser = httptools.HttpResponseParser(self)
        self._keep_text, self._is_stream, self._is_framed = keep_text, False, False
        self._last = deque(maxlen=None if keep_text else NUM_LAST_READS)
        self._rest.clear()
        self._ended = asyncio.get_running_loop().create_future()
        self._answer = ClientAnswer(time.perf_counter())
        if self.is_closed:
            self._finish("connection closed", "the connection was closed before the request")
        else:
            self._transport.write(request)
        return self._ended

    def give_up(self, kind: str, error: str = "") -> None:
        """Ends the running request as failed."""
        self._finish(kind, error)
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self._transport.abort()  # an orderly end of TLS would wait for the other side

    def data_received(self, data: bytes) -> None:
        if self._quick_ack:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.give_up("not HTTP", f"the server's answer is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if error is None and self._answer.status and not self._is_framed:
            self._end()
        self._finish("connection closed", f"the server closed the connection: {error or 'end of the stream'}")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.lower().startswith(b"text/event-stream")
        elif name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True
        elif name.lower() == b"retry-after" and value.strip().isdigit():  # the other form is a date
            self._answer.retry_after_s = float(value)

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._is_stream and not self._rest and body.endswith(b"\n\n") and self._answer.status == 200:
            self._read(body)  # complete events, which is nearly always the case
            return
        self._rest += body
        if self._answer.status != 200:
            del self._rest[MAX_ERROR_BYTES:]
            return
        if len(self._rest) > MAX_REST_BYTES:
            self.give_up("endless answer", f"over {MAX_REST_BYTES >> 20} MiB without an end")
        if not self._is_stream:
            return
        end = max(self._rest.rfind(b"\n\n") + 2, self._rest.rfind(b"\r\n\r\n") + 4)
        if end < 4:
            return
        events = bytes(self._rest[:end])
        del self._rest[:end]
        self._read(events)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._end()

    def _end(self) -> None:
        answer = self._answer
        if answer.status != 200:
            self._finish(f"HTTP {answer.status}", error_message(bytes(self._rest)))
        elif self._is_stream:
            self._end_stream()
        else:
            self._end_whole()

    def _read(self, events: bytes) -> None:
        answer, now = self._answer, self._now
        num_texts = events.count(PLAIN) - events.count(PLAIN_EMPTY) or len(TEXT.findall(events))
        if num_texts:
            if answer.first_s:
                answer.gaps.append((now - answer.latest_s, num_texts))
            else:
                answer.first_s = now
            answer.latest_s = now
            answer.num_chunks += num_texts
        self._last.append(events)

    def _end_stream(self) -> None:
        answer, is_done, texts = self._answer, False, []
        for line in b"".join(self._last).splitlines():
            if not line.startswith(b"data:"):
                continue
            if line[5:].strip() == b"[DONE]":
                is_done = True
                continue
            try:
                event = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if not isinstance(event, dict):
                continue
            if event.get("error"):
                self._finish("error in the stream", error_message(line[5:]))
                return
            count_usage(answer, event.get("usage"))
            if self._keep_text:
                texts.append(text_of(event))
        answer.text = "".join(texts)
        if not is_done and answer.num_output_tokens is None:
            self._finish("broken stream", "the stream ended without [DONE]")
        elif not answer.first_s and answer.num_tokens:
            answer.first_s = answer.latest_s = self._now  # there were tokens, but none with text
            self._finish("")
        else:
            self._finish("" if answer.first_s else "empty answer")

    def _end_whole(self) -> None:
        """Ends an answer in one piece, whose tokens all count as arriving at its end."""
        answer = self._answer
        if not self._reads_bodies:
            if self._keep_text:
                answer.text = self._rest.decode("utf-8", "replace")
            self._finish("")
            return
        event: Any = None
        with suppress(orjson.JSONDecodeError):
            event = orjson.loads(bytes(self._rest))
        if not isinstance(event, dict):
            self._finish("not JSON", "the answer is not a JSON object")
            return
        count_usage(answer, event.get("usage"))
        answer.text = text_of(event)
        answer.num_chunks = 1 if answer.text else 0
        self._finish("" if answer.num_tokens else "empty answer")

    def _finish(self, kind: str, error: str = "") -> None:
        if self._ended is None or self._ended.done():
            return
        self._answer.ended_s = time.perf_counter()
        if kind:
            self._answer.fail(kind, error)
        self._ended.set_result(self._answer)


def count_usage(answer: ClientAnswer, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    answer.num_prompt_tokens = prompt if isinstance(prompt, int) else answer.num_prompt_tokens
    answer.num_output_tokens = output if isinstance(output, int) else answer.num_output_tokens
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        answer.num_cached_tokens = details["cached_tokens"]


def text_of(event: dict[str, Any]) -> str:
    """The text of the first choice of a whole answer, or of a part of one."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ""
    part = choices[0].get("delta") or choices[0].get("message") or choices[0]
    text = part.get("content") if "content" in part else part.get("text")
    return text if isinstance(text, str) else ""


def error_message(body: bytes) -> str:
    """The server's own error message, in one line."""
    try:
        loaded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return " ".join(body[:300].decode("utf-8", "replace").split())
    for key in ("error", "detail", "message"):
        if isinstance(loaded, dict) and key in loaded:
            loaded = loaded[key]
            break
    if isinstance(loaded, dict):
        loaded = loaded.get("message", loaded)
    return " ".join(str(loaded).split())[:300]
