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
from slipstream.router.api.openai.responses.answer_keeper import ResponseKeeper
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.front.front import Front
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest, GenerationError
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
    holder: Path,
    tokenizer: Tokenizer,
    store: Path,
    hold_at: int | None,
    tokens_a_delta: int = 1,
    refusal: AdmissionError | None = None,
) -> AsyncIterator[tuple[FakeService, int]]:
    """One router after the other; each cuts its connections at its end, as a kill would."""

    def script(request: GenerateRequest) -> Script:
        token_ids = tokenizer._tokenizer.encode(OUTPUT, add_special_tokens=False).ids
        num_known = len(request.resumed.output_ids) // 4 if request.resumed is not None else 0
        return Script(token_ids[num_known:], "stop", hold_at=hold_at, tokens_a_delta=tokens_a_delta)

    service = FakeService(script, refusal=refusal)
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


@pytest.mark.parametrize(("held_at", "tokens_a_delta"), [(0, 1), (14, 1), (44, 5), (56, 7)])
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


@pytest.mark.parametrize("held_at", [0, 14, 44])
def test_one_that_the_next_router_refuses_ends_by_an_event_behind_those_that_were_sent(
    tmp_path: Path, held_at: int
) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
            tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
            async with router(holder.path, tokenizer, tmp_path, held_at) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                body = {"model": MODEL, "input": "hi", "tools": TOOLS, "stream": True}
                writer.write(request_of("POST", "/v1/responses", body))
                data = await reader.readuntil(b": ping\n\n") + await reader.readuntil(b": ping\n\n")
            refusal = AdmissionError(GenerationError("shutting_down", "the router is shutting down"))
            async with router(holder.path, tokenizer, tmp_path, None, refusal=refusal):
                data += await reader.read()
                writer.close()
            events = response_events(unchunk(data.partition(b"\r\n\r\n")[2]))
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert [event["type"] for event in events].count("response.created") == 1
            assert (events[-2]["type"], events[-2]["code"]) == ("error", "shutting_down")
            assert events[-1]["type"] == "response.failed"
            sent = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
            output = events[-1]["response"]["output"]
            assert [item["id"] for item in output] == sent
            deltas = "".join([event.get("delta", "") for event in events])
            texts = [item.get("arguments") or item.get("input") or "" for item in output]
            texts += [part["text"] for item in output for part in item.get("content", ())]
            assert sorted("".join(texts)) == sorted(deltas)

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_one_that_was_stored_already_is_not_read_as_a_part_of_its_own_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Its router is killed after it has stored the response and before its client hears of that."""
    keep = ResponseKeeper.keep
    stored = asyncio.Event()

    async def stored_and_held(keeper: ResponseKeeper, end: bytes) -> bytes:
        end = await keep(keeper, end)
        if not stored.is_set():
            stored.set()
            await asyncio.Event().wait()
        return end

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool, contextlib.closing(SocketHolder()) as holder:
            tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
            async with router(holder.path, tokenizer, tmp_path, None) as (_, port):
                conversation = await asked(port, "POST", "/v1/conversations", {})
                root = {"model": MODEL, "tools": TOOLS, "conversation": conversation["id"]}
                first = await asked(port, "POST", "/v1/responses", {**root, "input": "hi"})
            calls = [item for item in first["output"] if "call_id" in item]
            results = [
                {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "done"} for call in calls
            ]
            monkeypatch.setattr(ResponseKeeper, "keep", stored_and_held)
            body = {**root, "input": results, "stream": stream}
            async with router(holder.path, tokenizer, tmp_path, None) as (service, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request_of("POST", "/v1/responses", body))
                await stored.wait()
                prompt_ids = service.requests[-1].prompt_ids
            async with router(holder.path, tokenizer, tmp_path, None) as (service, port):
                data = await reader.read()
                writer.close()
                assert data.startswith(b"HTTP/1.1 200")
                assert service.requests[-1].prompt_ids == prompt_ids
                answer = data.partition(b"\r\n\r\n")[2]
                whole = response_events(unchunk(answer))[-1]["response"] if stream else orjson.loads(answer)
                page = await asked(port, "GET", f"/v1/conversations/{conversation['id']}/items?order=asc", None)
            assert whole["status"] == "completed"
            kinds = [item["type"] for item in page["data"]]
            output = [item["type"] for item in whole["output"]]
            assert kinds == ["message", *output, *[result["type"] for result in results], *output]

    run(main)


def request_of(method: str, path: str, body: object) -> bytes:
    data = orjson.dumps(body) if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def asked(port: int, method: str, path: str, body: object) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_of(method, path, body))
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    whole: dict[str, Any] = orjson.loads(answer.partition(b"\r\n\r\n")[2])
    return whole
