"""A message whose router is killed goes on at the next one: its client sees one sequence of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FakeService, Script, run, unchunk
from tests.support.router.message_events import message_events, put_together

OUTPUT = (
    "<think>Hm 🙂, so.</think>\n\nWait, wörd.<|tool_call|>"
    '{"name": "f", "arguments": {"a": "ü"}}<|tool_call|>{"name": "f", "arguments": {"b": [1, 2]}}'
)
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
PING_S = 0.02


@contextlib.asynccontextmanager
async def router(
    holder: Path, tokenizer: Tokenizer, hold_at: int | None, tokens_a_delta: int = 1
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
    handler = Front(catalog, service, lambda *_: None, lambda: 0, RouterConfig(http))
    server = FailoverServer(http, handler, ExchangeContext, failover)
    port = await server.start()
    await server.take_over()
    try:
        yield service, port
    finally:
        await server.stop()
        await service.close()


async def answered(held_at: int | None, tokens_a_delta: int, stream: bool) -> bytes:
    """The answer. `held_at`: the token before which its router is killed, None: not at all."""
    fields = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "max_tokens": 100, "seed": 1}
    body = orjson.dumps({"model": MODEL, "stream": stream, **fields})
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
        tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
        data, writer = b"", None
        if held_at is not None:
            async with router(holder.path, tokenizer, held_at, tokens_a_delta) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
                data = await reader.readuntil(PING) + await reader.readuntil(PING)
        async with router(holder.path, tokenizer, None) as (service, port):
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head.encode() + body)
            data += await reader.read()
            writer.close()
            assert all((request.resumed is not None) == (held_at is not None) for request in service.requests)
    assert data.count(b"HTTP/1.1 200") == 1
    _, _, rest = data.partition(b"\r\n\r\n")
    return unchunk(rest) if stream else rest


@pytest.mark.parametrize(("held_at", "tokens_a_delta"), [(0, 1), (14, 1), (44, 5), (60, 7)])
def test_its_message_is_that_of_one_router(held_at: int, tokens_a_delta: int) -> None:
    async def main() -> None:
        whole = orjson.loads(await answered(None, 1, stream=False))
        message = put_together(message_events(await answered(held_at, tokens_a_delta, stream=True)))
        assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
        for made in (whole, message):
            assert made.pop("id").startswith("msg_")
            for block in made["content"]:
                block.pop("id", None)
        assert message == whole

    run(main)
