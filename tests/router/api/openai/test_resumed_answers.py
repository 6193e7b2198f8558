"""A whole answer whose router was killed is the one that its client would have got from that router."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.front.front import Front
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FakeService, Script, run, unchunk

SHORT, LONG = "It ended 🙂 before.", "This goes on, wörd for word, until the end."  # the first choice and the second
PING_S = 0.02
HELD_AT = 13  # tokens of the second choice, when the first one has ended


class Gate(asyncio.Event):
    """Says when somebody waits at it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> bool:
        self.reached.set()
        return await super().wait()


@contextlib.asynccontextmanager
async def router(
    path: Path,
    tokenizer: Tokenizer,
    hold_at: int | None,
    aliases: Mapping[str, tuple[str, ...]] = {MODEL: ()},
    texts: tuple[str, str] = (SHORT, LONG),
    tokens_a_delta: int = 1,
) -> AsyncIterator[tuple[FakeService, int]]:
    """One router after the other; each cuts its connections at its end, as a kill would. It serves the models that have
    these `aliases`."""

    def script(request: GenerateRequest) -> Script:
        text = texts[request.choice]
        token_ids = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
        num_known = len(request.resumed.output_ids) // 4 if request.resumed is not None else 0
        held_at = hold_at if request.choice else None
        return Script(token_ids[num_known:], "length", hold_at=held_at, tokens_a_delta=tokens_a_delta)

    service = FakeService(script, release=Gate())
    failover = await asyncio.to_thread(FailoverSession.of_holder, path)
    assert failover is not None
    http = HttpConfig(host="127.0.0.1", port=0, sse_ping_s=PING_S)
    outputs = ModelOutputs.of(tokenizer, {}, ParserNames("auto", "qwen3"))
    catalog = Catalog.of(
        ServedModel(name, tokenizer, aliases=of_it, outputs=outputs) for name, of_it in aliases.items()
    )
    handler = Front(catalog, service, lambda *_: None, lambda: 0, RouterConfig(http))
    server = FailoverServer(http, handler, ExchangeContext, failover)
    port = await server.start()
    await server.take_over()
    try:
        yield service, port
    finally:
        await server.stop()
        await service.close()


async def answered(is_killed: bool, **fields: Any) -> tuple[dict[str, Any], list[GenerateRequest]]:
    """The answer, without what no two answers share, and what the last router submitted."""
    holder = SocketHolder()
    body = orjson.dumps({"model": MODEL, "prompt": "Say it", "n": 2, "max_tokens": 60, **fields})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool, contextlib.closing(holder):
        tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
        async with router(holder.path, tokenizer, HELD_AT) as (service, port):
            assert isinstance(service.release, Gate)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode() + body)
            await service.release.reached.wait()
            for _ in range(3):
                await asyncio.sleep(0)  # what came last is handed out
            if not is_killed:
                service.release.set()
                data = await reader.read()
        if is_killed:
            async with router(holder.path, tokenizer, None) as (service, _):
                data = await reader.read()
        writer.close()
    answer = orjson.loads(data.partition(b"\r\n\r\n")[2])
    return {name: answer[name] for name in ("choices", "usage")}, service.requests


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"echo": True},
        {"stop": ["word,"]},
        {"stop": ["until then"]},
        {"stop": ["ended"], "include_stop_str_in_output": True},  # which the killed router has found already
        {"logprobs": 2},
        {"prompt_logprobs": 1, "return_token_ids": True},
        {"prompt_logprobs": 0, "logprobs": 1, "echo": True},
        {"logprobs": 2, "stop": ["on, word"]},  # which may have begun when the router is killed
    ],
    ids=orjson.dumps,
)
def test_it_has_the_same_choices_and_the_same_usage(fields: dict[str, Any]) -> None:
    async def main() -> None:
        undisturbed, _ = await answered(False, **fields)
        resumed, requests = await answered(True, **fields)
        assert resumed == undisturbed
        assert all(request.resumed is not None for request in requests)

    run(main)


def test_both_choices_go_on_from_the_tokens_that_they_had() -> None:
    async def main() -> None:
        _, (short, long) = await answered(True)
        assert short.resumed is not None
        assert long.resumed is not None
        assert len(unpack_ids(long.resumed.output_ids)) == HELD_AT
        assert 0 < len(unpack_ids(short.resumed.output_ids)) < HELD_AT  # all but the last, which tells of its end

    run(main)


@pytest.mark.parametrize("held_at", [0, HELD_AT])
def test_a_stream_that_was_pinged_goes_on_at_the_next_router_as_if_it_had_not_been(held_at: int) -> None:
    async def main() -> None:
        body = orjson.dumps({"model": MODEL, "prompt": "Say it", "n": 2, "max_tokens": 60, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
            tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
            async with router(holder.path, tokenizer, held_at) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
                data = await reader.readuntil(b": ping\n\n")
                data += await reader.readuntil(b": ping\n\n")
            async with router(holder.path, tokenizer, None):
                data += await reader.read()
            writer.close()
        assert data.count(b"HTTP/1.1") == data.count(b"data: [DONE]") == 1
        _, _, rest = data.partition(b"\r\n\r\n")
        events = [line for line in unchunk(rest).decode().split("\n\n") if line.startswith("data: {")]
        texts = ["", ""]
        for event in events:
            for choice in orjson.loads(event[6:])["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [SHORT, LONG]

    run(main)


CALLS = (
    '<|tool_call|>{"name": "f", "arguments": {"a": 1}}',
    '<think>Hm 🙂.</think>Wait.<|tool_call|>{"name": "f", "arguments": {"a": "ü"}}'
    '<|tool_call|>{"arguments": {"b": [1, 2]}, "name": "g"}',
)
TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]


async def streamed_calls(held_at: int | None, tokens_a_delta: int) -> list[dict[str, Any]]:
    """The chunks of an answer with calls; its router is killed at that token of the second choice, None: not at all."""
    fields = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "tools": TOOLS, "max_tokens": 90}
    body = orjson.dumps({"model": MODEL, "stream": True, **fields})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
        tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
        data, writer = b"", None
        if held_at is not None:
            async with router(holder.path, tokenizer, held_at, texts=CALLS, tokens_a_delta=tokens_a_delta) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
                data = await reader.readuntil(b": ping\n\n") + await reader.readuntil(b": ping\n\n")
        async with router(holder.path, tokenizer, None, texts=CALLS) as (service, port):
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
            data += await reader.read()
            assert all((request.resumed is not None) == (held_at is not None) for request in service.requests)
        writer.close()
    assert data.count(b"HTTP/1.1") == data.count(b"data: [DONE]") == 1
    events = unchunk(data.partition(b"\r\n\r\n")[2]).decode().split("\n\n")
    return [orjson.loads(event[6:]) for event in events if event.startswith("data: {")]


def deltas_of(chunks: list[dict[str, Any]], index: int) -> list[tuple[str, Any]]:
    """What a choice got, with the fragments of a text as one, and all names and ids at their places."""
    made: list[tuple[str, Any]] = []
    answer_id = {chunk["id"] for chunk in chunks}
    assert len(answer_id) == 1
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta = choice["delta"]
        assert delta.pop("reasoning", None) == delta.get("reasoning_content")
        parts = [(name, value) for name, value in delta.items() if value not in (None, "")]
        for name, value in parts:
            kind = name
            if name == "tool_calls":
                (call,) = value
                kind, value = f"arguments {call['index']}", call["function"]["arguments"]
                if "id" in call:
                    made.append((f"call {call['index']}", (call["function"]["name"], len(call["id"]))))
            if made and made[-1][0] == kind:
                made[-1] = kind, made[-1][1] + value
            else:
                made.append((kind, value))
        if choice["finish_reason"] is not None:
            made.append(("finish", choice["finish_reason"]))
    return made


@pytest.mark.parametrize(("held_at", "tokens_a_delta"), [(3, 1), (14, 1), (24, 3), (52, 5)])
def test_a_stream_of_calls_goes_on_at_the_next_router_with_nothing_twice(held_at: int, tokens_a_delta: int) -> None:
    async def main() -> None:
        undisturbed = await streamed_calls(None, 1)
        resumed = await streamed_calls(held_at, tokens_a_delta)
        for index in range(2):
            assert deltas_of(resumed, index) == deltas_of(undisturbed, index)

    run(main)


@pytest.mark.parametrize("asked", ["latest", "latest@v2"])
def test_an_answer_keeps_the_model_that_its_alias_stood_for_when_it_began(asked: str) -> None:
    async def main() -> None:
        fields = {"model": asked, "prompt": "Say it", "n": 2, "max_tokens": 60, "stream": True}
        body = orjson.dumps(fields)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
            tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
            before, after = {"one": ("latest",), "two": ()}, {"one": (), "two": ("latest",)}
            async with router(holder.path, tokenizer, HELD_AT, before) as (service, port):
                service.versions = ("v1", "v2")
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
                data = await reader.readuntil(b": ping\n\n")
                assert {(request.model, request.version) for request in service.requests} == {("one", asked[7:])}
            async with router(holder.path, tokenizer, None, after) as (service, _):
                data += await reader.read()
                assert {(request.model, request.version) for request in service.requests} == {("one", asked[7:])}
                assert all(request.resumed is not None for request in service.requests)
            writer.close()
        assert data.count(b"data: [DONE]") == 1
        assert data.count(b'"model":"latest"') == data.count(b"data: {")

    run(main)


def test_an_answer_of_a_model_that_is_gone_is_broken_off_and_begins_at_no_other() -> None:
    async def main() -> None:
        body = orjson.dumps({"model": "latest", "prompt": "Say it", "n": 2, "max_tokens": 60, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
            tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
            async with router(holder.path, tokenizer, HELD_AT, {"one": ("latest",)}) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
                data = await reader.readuntil(b": ping\n\n")
            async with router(holder.path, tokenizer, None, {"two": ("latest",)}) as (service, _):
                with contextlib.suppress(ConnectionResetError):
                    while part := await reader.read(65536):
                        data += part
                assert service.requests == []
            writer.close()
        assert b"[DONE]" not in data

    run(main)
