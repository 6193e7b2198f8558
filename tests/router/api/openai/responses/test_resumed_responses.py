"""A response whose router is killed goes on at the next one: its client sees one sequence of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
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
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.frontends.front import Front
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FakeService, Script, run, unchunk
from tests.support.router.response_events import put_together, response_events, without_ids

OUTPUT = (
    "<think>Hm 🙂, so.</think>\n\nWait, wörd.<|tool_call|>"
    '{"name": "f", "arguments": {"a": "ü"}}<|tool_call|>{"name": "g", "arguments": {"input": "x\\n\\"y\\""}}'
)
TOOLS = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
PING_S = 0.02


@contextlib.asynccontextmanager
async def router(
    holder: Path, tokenizer: Tokenizer, store: Path, hold_at: int | None, tokens_a_delta: int = 1
) -> AsyncIterator[tuple[FakeService, int]]:
    """One router after the other; each cuts its connections at its end, as a kill would."""

    def script(request: GenerateRequest) -> Script:
        token_ids = tokenizer._tokenizer.encode(OUTPUT, add_special_tokens=False).ids
        num_known = len(request.resumed.output_ids) // 4 if request.resumed is not None else 0
        return Script(token_ids[num_known:], "stop", hold_at=hold_at, tokens_a_delta=tokens_a_delta)

    service = FakeService(script)
    failover = await asyncio.to_thread(FailoverSession.of_holder, holder)
    assert failover is not None
    http = HttpConfig(host="127.0.0.1", port=0, sse_ping_s=PING_S)
    outputs = ModelOutputs.of(tokenizer, {}, ParserNames("auto", "qwen3"))
    catalog = Catalog.of([ServedModel(MODEL, tokenizer, outputs=outputs)])
    config = RouterConfig(http, store=StoreConfig(directory=str(store)))
    handler = Front(catalog, service, lambda *_: None, lambda: 0, config)
    server = FailoverServer(http, handler, ExchangeContext, failover)
    async with contextlib.AsyncExitStack() as cleanup:
        handler.open(cleanup)
        port = await server.start()
        await server.take_over()
        try:
            yield service, port
        finally:
            await server.stop()
            await service.close()


async def answered(
    store: Path, held_at: int | None, tokens_a_delta: int, **fields: Any
) -> tuple[bytes, dict[str, Any]]:
    """The answer, and the response that is stored then. `held_at`: the token before which its router is killed, None:
    not at all."""
    body = orjson.dumps({"model": MODEL, "input": "hi", "tools": TOOLS, "seed": 1, **fields})
    head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
        tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
        data, writer = b"", None
        if held_at is not None:
            async with router(holder.path, tokenizer, store, held_at, tokens_a_delta) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
                data = await reader.readuntil(b": ping\n\n") + await reader.readuntil(b": ping\n\n")
        async with router(holder.path, tokenizer, store, None) as (service, port):
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
            data += await reader.read()
            writer.close()
            assert all((request.resumed is not None) == (held_at is not None) for request in service.requests)
            events = response_events(unchunk(data.partition(b"\r\n\r\n")[2]))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            path = f"/v1/responses/{events[-1]['response']['id']}"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            stored = await reader.read()
            writer.close()
    assert data.count(b"HTTP/1.1 200") == 1
    return data, orjson.loads(stored.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(("held_at", "tokens_a_delta"), [(0, 1), (14, 1), (44, 5), (60, 7)])
def test_its_events_are_those_of_one_router_and_it_is_stored_once(
    tmp_path: Path, held_at: int, tokens_a_delta: int
) -> None:
    async def main() -> None:
        asked = {"stream": True, "reasoning": {"summary": "auto" if held_at < 44 else "none"}}
        undisturbed, _ = await answered(tmp_path, None, 1, **asked)
        data, stored = await answered(tmp_path, held_at, tokens_a_delta, **asked)
        expected, events = (response_events(unchunk(one.partition(b"\r\n\r\n")[2])) for one in (undisturbed, data))
        assert without_ids(events) == without_ids(expected)
        assert put_together(events) == events[-1]["response"]["output"]
        assert {event["response"]["id"] for event in events if "response" in event} == {stored["id"]}
        assert stored == events[-1]["response"]

    run(main)
