"""What a client makes of a server's bytes, however they are cut and whatever goes wrong."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from slipstream.cluster.tools.bench.client import client_connection as connection
from slipstream.cluster.tools.bench.client.bench_target import Target
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.client.conversation import Turn
from slipstream.cluster.tools.bench.client.request_body import RequestBody
from slipstream.cluster.tools.bench.client.request_sender import RequestSender
from tests.support.cluster.scripted_server import begin, chunk, end, event, normal, piece, scripted, usage, whole

Script = Any


def answers(script: Script, count: int = 1, keep_text: bool = False, timeout_s: float = 30.0) -> list[ClientAnswer]:
    """What came to `count` questions, one after the other."""

    async def main(url: str) -> list[ClientAnswer]:
        target = Target.of_url(url)
        sender = RequestSender(target, timeout_s, RequestBody(target))
        try:
            return [await sender.ask(Turn("hello", 4), [], keep_text) for _ in range(count)]
        finally:
            sender.close()

    with scripted(script) as server:
        return asyncio.run(main(server.url))


def test_a_stream_of_one_token_a_chunk() -> None:
    [answer] = answers(normal)
    assert answer.is_good
    assert (answer.num_tokens, answer.num_chunks, answer.num_prompt_tokens) == (4, 4, 7)
    assert answer.begun_s < answer.first_s <= answer.latest_s <= answer.ended_s
    assert answer.itl_s == pytest.approx((answer.latest_s - answer.first_s) / 3)


def test_several_tokens_in_a_chunk_count_as_the_server_says() -> None:
    async def script(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        begin(writer)
        chunk(writer, piece("one two three ") + piece("four"))
        chunk(writer, usage(7, 4) + event("[DONE]"))
        end(writer)

    [answer] = answers(script)
    assert (answer.num_tokens, answer.num_chunks) == (4, 2)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_cut_anywhere_are_read_alike(step: int, newline: bytes) -> None:
    async def script(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        begin(writer)
        data = (piece("é“x") + piece('"content":"no') + usage(5, 2) + event("[DONE]")).replace(b"\n", newline)
        for at in range(0, len(data), step):
            chunk(writer, data[at : at + step])
            await writer.drain()
        end(writer)

    [answer] = answers(script, keep_text=True)
    assert answer.is_good, answer.error
    assert (answer.text, answer.num_tokens, answer.num_chunks) == ('é“x"content":"no', 2, 2)


def test_without_usage_chunks_are_counted() -> None:
    async def script(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        begin(writer)
        chunk(writer, piece("a") + piece("b") + event("[DONE]"))
        end(writer)

    [answer] = answers(script)
    assert answer.num_output_tokens is None
    assert answer.num_tokens == 2


async def refusing(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    whole(writer, 429, {"error": {"message": "too many\nof them", "type": "x"}})


async def failing(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    begin(writer)
    chunk(writer, piece("a") + event({"error": {"message": "the worker died"}}))
    end(writer)


async def leaving(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    begin(writer)
    chunk(writer, piece("a"))
    await writer.drain()
    raise ConnectionError


async def breaking_off(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    begin(writer)
    chunk(writer, piece("a"))
    end(writer)


async def silent(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    begin(writer)
    await writer.drain()
    await asyncio.Event().wait()


async def babbling(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def empty(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    begin(writer)
    chunk(writer, usage(5, 0) + event("[DONE]"))
    end(writer)


async def page(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    data = b"<html>It works!</html>"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))


async def nothing(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n")


async def without_text(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    whole(writer, 200, {"choices": [{"message": {"content": ""}}]})


async def half(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
    """Some tokens, and then neither more of them nor an end."""
    begin(writer)
    chunk(writer, piece("a"))
    await writer.drain()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("script", "kind", "error"),
    [
        (page, "not JSON", "not a JSON object"),
        (nothing, "broken stream", "without [DONE]"),
        (without_text, "empty answer", ""),
        (half, "timeout", "no whole answer within"),
        (refusing, "HTTP 429", "too many of them"),
        (failing, "error in the stream", "the worker died"),
        (leaving, "connection closed", "closed the connection"),
        (breaking_off, "broken stream", "without [DONE]"),
        (silent, "timeout", ""),
        (babbling, "not HTTP", "not HTTP"),
        (empty, "empty answer", ""),
    ],
)
def test_whatever_goes_wrong_is_an_answer_of_a_kind(script: Script, kind: str, error: str) -> None:
    first, second = answers(script, 2, timeout_s=0.5 if script in (silent, half) else 30.0)
    assert (first.kind, second.kind) == (kind, kind)
    assert error in first.error


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async def old(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        head = "event-stream" if number == 0 else "plain"
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/{head}\r\n\r\n".encode())
        if number == 0:
            writer.write(piece("a") + usage(3, 1) + event("[DONE]"))
        else:
            writer.write(b'{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": 1}}')
        await writer.drain()
        raise ConnectionError  # closes it

    stream, whole_answer = answers(old, 2)
    assert (stream.kind, stream.num_prompt_tokens, stream.num_tokens) == ("", 3, 1)
    assert (whole_answer.kind, whole_answer.num_tokens, whole_answer.ttft_s) == ("", 1, None)


def test_a_stream_without_an_end_takes_no_more_than_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REST_BYTES", 1 << 16)

    async def flood(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        begin(writer)
        while True:
            chunk(writer, b"x" * 4096)
            await writer.drain()

    assert answers(flood)[0].kind == "endless answer"


def test_what_a_server_says_about_when_to_come_back_is_kept() -> None:
    async def script(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        whole(writer, 429, {"error": "later"}, "Retry-After: 2\r\n" if number == 0 else "retry-after: Mon, 1 Jan\r\n")

    assert [(answer.kind, answer.retry_after_s) for answer in answers(script, 2)] == [
        ("HTTP 429", 2),
        ("HTTP 429", None),
    ]


def test_the_first_token_is_the_first_text_whatever_it_is_part_of() -> None:
    """The role comes before, and of a token without a text (of control, or a part of a character) nothing is known."""

    async def script(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        begin(writer)
        for delta in ({"role": "assistant", "content": ""}, {"content": ""}, deltas[number], {}):
            chunk(writer, event({"choices": [{"index": 0, "delta": delta}]}))
            await writer.drain()
        chunk(writer, usage(5, 3) + event("[DONE]"))
        end(writer)

    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": ""}}
    deltas = [{"content": "a"}, {"reasoning_content": "a"}, {"reasoning": "a"}, {"tool_calls": [call]}]
    for answer in answers(script, len(deltas)):
        assert (answer.kind, answer.num_chunks, answer.num_tokens) == ("", 1, 3)
        assert answer.first_s == answer.latest_s


def test_nobody_listens() -> None:
    async def main(target: Target) -> ClientAnswer:
        return await RequestSender(target, 5.0, RequestBody(target)).ask(Turn("x", 1), [], False)

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        target = Target.of_url(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert asyncio.run(main(target)).kind == "connection refused"


def test_a_connection_that_the_server_closed_while_it_was_idle_is_no_failure() -> None:
    async def once(writer: asyncio.StreamWriter, body: dict[str, Any], number: int) -> None:
        if number == 1:  # the second request on the first connection hears nothing
            raise ConnectionError
        await normal(writer, body, number)

    assert [answer.kind for answer in answers(once, 3)] == ["", "", ""]
