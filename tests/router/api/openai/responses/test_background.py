"""Responses that are generated without their client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from slipstream.router.access.access import Access
from slipstream.router.access.api_key import digest_of
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.openai.responses import background_responses, event_replay
from slipstream.router.api.openai.responses.background_store import JOB
from slipstream.router.api.openai.responses.run_files import RunFiles
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.model_outputs import ModelOutputs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.background_config import BackgroundConfig
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.front.front import Front
from slipstream.router.http.failover.journal import Journal
from slipstream.router.http.server import HttpServer
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.generation import GenerateRequest, GenerationError
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FakeService, FrontUnderTest, Script, openai_client, run
from tests.support.router.openai_schemas import check
from tests.support.router.response_events import put_together, without_ids

PATH = "/v1/responses"
OUTPUT = "<think>Hm 🙂, so.</think>\n\nWait, wörd."
OVER = ("completed", "incomplete", "failed", "cancelled")
BACKGROUND = BackgroundConfig()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_responses, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(event_replay, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(event_replay, "LOOK_EVERY_S", 0.005)


class Site(FrontUnderTest):
    """`handler` is its front."""

    handler: Front

    async def asked(self, method: str, path: str, body: object = None, key: str = "") -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        status, _, answer = await self.request(method, f"{PATH}{path}", body, headers)
        return status, orjson.loads(answer)

    async def created(self, key: str = "", **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "input": "hi", "background": True, "seed": 1, **fields}
        status, response = await self.asked("POST", "", body, key)
        assert status == 200, response
        check("Response", response)
        return response

    async def at_end(self, response_id: str, key: str = "") -> dict[str, Any]:
        while True:
            status, response = await self.asked("GET", f"/{response_id}", key=key)
            assert status == 200
            check("Response", response)
            if response["status"] in OVER:
                return response
            await asyncio.sleep(0.005)

    async def in_progress(self, response_id: str) -> None:
        await self.service.submitted.wait()
        assert (await self.asked("GET", f"/{response_id}"))[1]["status"] == "in_progress"

    async def events(self, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
        query = "stream=true" if after is None else f"stream=true&starting_after={after}"
        status, _, answer = await self.request("GET", f"{PATH}/{response_id}?{query}")
        assert status == 200, answer
        first = 0 if after is None else after + 1
        blocks = [orjson.loads(block.partition("\ndata: ")[2]) for block in answer.decode().split("\n\n")[:-1]]
        assert [event["sequence_number"] for event in blocks] == list(range(first, first + len(blocks)))
        return blocks


@contextlib.asynccontextmanager
async def router(
    store: Path,
    *,
    hold_at: int | None = None,
    error: GenerationError | None = None,
    keys: Path | None = None,
    background: BackgroundConfig = BACKGROUND,
    tokens_a_delta: int = 1,
) -> AsyncIterator[Site]:
    """One after the other, or several at a time, on one store. What it has not finished at its end it leaves to the
    others, as after a kill."""
    with ThreadPoolExecutor(2) as pool:
        tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)

        def script(request: GenerateRequest) -> Script:
            token_ids = tokenizer._tokenizer.encode(OUTPUT, add_special_tokens=False).ids
            num_known = len(request.resumed.output_ids) // 4 if request.resumed is not None else 0
            return Script(token_ids[num_known:], "stop", hold_at=hold_at, error=error, tokens_a_delta=tokens_a_delta)

        service = FakeService(script)
        outputs = ModelOutputs.of(tokenizer, {}, ParserNames("auto", "qwen3"))
        http = HttpConfig(port=0)
        config = RouterConfig(http, store=StoreConfig(directory=str(store)), background=background)
        access = Access(None, pool)
        if keys is not None:
            access = Access(AccessConfig(str(keys)), pool)
        access.open()
        catalog = Catalog.of([ServedModel(MODEL, tokenizer, outputs=outputs)])
        handler = Front(catalog, service, lambda *_: None, lambda: 0, config, access)
        server = HttpServer(http, handler, ExchangeContext)
        port = await server.start()
        site = Site(service, tokenizer, server, port)
        site.handler = handler
        async with contextlib.AsyncExitStack() as cleanup:
            handler.open(cleanup)
            try:
                yield site
            finally:
                await server.stop()
        await access.close()
        await service.close()


def files_of(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "blobs").iterdir())


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_generated_without_its_client(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with router(tmp_path, hold_at=9) as site:
            if stream:
                body = orjson.dumps({"model": MODEL, "input": "hi", "background": True, "stream": True, "seed": 1})
                reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
                writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)))
                writer.write(body)
                data = await reader.readuntil(b"reasoning_text.delta")
                writer.close()  # the client leaves
                response_id = f"resp_{data.partition(b'resp_')[2][:32].decode()}"
            else:
                queued = await site.created()
                assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
                response_id = queued["id"]
            await site.in_progress(response_id)
            status, refused = await site.asked(
                "POST", "", {"model": MODEL, "input": "x", "previous_response_id": response_id}
            )
            assert (status, refused["error"]["param"]) == (400, "previous_response_id")
            site.service.release.set()
            response = await site.at_end(response_id)
            assert response["status"] == "completed"
            assert response["output"][1]["content"][0]["text"] == "Wait, wörd."
            assert response["usage"]["output_tokens"] > 0
            assert await site.asked("POST", f"/{response_id}/cancel") == (200, response)  # too late
            next_one = await site.created(previous_response_id=response_id, background=False)
            assert next_one["status"] == "completed"
            if stream:
                events = await site.events(response_id)
                assert events[-1]["response"] == response
                assert await site.events(response_id, 4) == events[5:]
                assert put_together(events) == response["output"]
            else:
                status, refused = await site.asked("GET", f"/{response_id}?stream=true")
                assert (status, refused["error"]["param"]) == (400, "stream")
        assert files_of(tmp_path) == ([response_id] if stream else [])

    run(main)


@pytest.mark.parametrize(("stream", "hold_at"), [(False, 9), (True, 0), (True, 9), (True, 14)])
def test_the_next_process_goes_on_with_the_same_tokens_and_events(tmp_path: Path, stream: bool, hold_at: int) -> None:
    async def main() -> None:
        async with router(tmp_path / "a") as site:
            first = await site.at_end((await begun(site, stream))["id"])
            whole = await site.events(first["id"]) if stream else []
        async with router(tmp_path / "b", hold_at=hold_at) as site:
            response_id = (await begun(site, stream))["id"]
            await site.in_progress(response_id)
            await all_taken(site, hold_at)
        async with router(tmp_path / "b", tokens_a_delta=4) as site:
            response = await site.at_end(response_id)
            (request,) = site.service.requests
            num_known = len(request.resumed.output_ids) // 4 if request.resumed is not None else 0
            assert num_known == hold_at
            assert without_ids(response) == without_ids(first)
            if stream:
                assert without_ids(await site.events(response_id)) == without_ids(whole)

    run(main)


async def begun(site: Site, stream: bool) -> dict[str, Any]:
    """A response whose client leaves at once, if it is a stream."""
    if not stream:
        return await site.created()
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    body = orjson.dumps({"model": MODEL, "input": "hi", "background": True, "stream": True, "seed": 1})
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body)
    await site.service.submitted.wait()
    writer.close()
    return {"id": site.service.requests[0].request_id}


async def all_taken(site: Site, num_tokens: int) -> None:
    """The process has noted so many tokens."""
    blobs, (request,) = site.handler.apis.store.blobs, site.service.requests
    while True:
        journal = Journal.in_file(blobs.path(f"{request.request_id}.journal"))
        tokens = journal.unfinished().tokens.get(0, b"")
        journal.close()
        if len(tokens) // 4 >= num_tokens:
            return
        await asyncio.sleep(0.005)


STEPS: dict[str, tuple[type, str]] = {
    "stored": (background_responses.BackgroundRun, "run"),
    "opened": (RunFiles, "open"),
    "events": (RunFiles, "add_events"),
    "noted": (background_responses.BackgroundStore, "note_progress"),
    "kept": (ObjectStore, "put_if"),
    "removed": (RunFiles, "remove"),
    "forgotten": (background_responses.BackgroundStore, "remove_job"),
}


@pytest.mark.parametrize(
    ("step", "after"), [(step, False) for step in STEPS] + [("events", True), ("kept", True), ("forgotten", True)]
)
def test_a_kill_at_any_step_leaves_one_whole_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """`after` the step, or before it."""

    async def main() -> None:
        owner, name = STEPS[step]
        killed = asyncio.Event()
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patched:
            patched.setattr(
                owner, name, killing(getattr(owner, name), after, lambda: loop.call_soon_threadsafe(killed.set))
            )
            async with router(tmp_path) as site:
                response_id = (await begun_or_killed(site, killed))["id"]
                await killed.wait()
        async with router(tmp_path) as site:
            response = await site.at_end(response_id)
            assert response["status"] == "completed"
            events = await site.events(response_id)
            assert events[-1] == {
                "type": "response.completed",
                "response": response,
                "sequence_number": len(events) - 1,
            }
            if step not in ("kept", "removed", "forgotten"):
                assert put_together(events) == response["output"]
            while await site.handler.apis.store.pinned(JOB):
                await asyncio.sleep(0.005)
        assert files_of(tmp_path) == [response_id]

    run(main)


async def begun_or_killed(site: Site, killed: asyncio.Event) -> dict[str, Any]:
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    body = orjson.dumps({"model": MODEL, "input": "hi", "background": True, "stream": True, "seed": 1})
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body)
    await killed.wait()
    (stored,) = (await site.handler.apis.store.page("response", "")).objects  # type: ignore[union-attr]
    writer.close()
    return {"id": stored.id}


def killing(step: Callable[..., Any], after: bool, tell: Callable[[], object]) -> Callable[..., Any]:
    """The process does not come back from the step."""
    if asyncio.iscoroutinefunction(step):

        async def hang(*args: Any, **more: Any) -> Any:
            if after:
                await step(*args, **more)
            tell()
            await asyncio.Event().wait()

        return hang

    def fail(*args: Any, **more: Any) -> Any:
        if after:
            step(*args, **more)
        tell()
        raise StoreError("this process does no more of it for now")

    return fail


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_one_that_is_not_wanted_ends_promptly_whichever_process_hears_of_it(
    tmp_path: Path, stream: bool, how: str
) -> None:
    async def main() -> None:
        async with router(tmp_path, hold_at=9) as site, router(tmp_path) as other:
            response_id = (await begun(site, stream))["id"]
            await site.in_progress(response_id)
            if stream:
                reader, writer = await asyncio.open_connection("127.0.0.1", other.port)
                path = f"{PATH}/{response_id}?stream=true"
                writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
                await reader.readuntil(b"event: response.in_progress")
            if how == "cancel":
                status, cancelled = await other.asked("POST", f"/{response_id}/cancel")
                assert (status, cancelled["status"]) == (200, "cancelled")
                check("Response", cancelled)
                assert await site.asked("POST", f"/{response_id}/cancel") == (200, cancelled)
                assert await site.at_end(response_id) == cancelled
            else:
                assert (await other.asked("DELETE", f"/{response_id}"))[0] == 200
                assert (await site.asked("GET", f"/{response_id}"))[0] == 404
            await site.service.some_cancelled.wait()
            assert other.service.requests == []
            if stream:
                rest = await reader.read()
                writer.close()
                assert rest.endswith(b"0\r\n\r\n")  # the stream ends in order
                assert b"response.completed" not in rest
            while any(name.endswith(".journal") for name in files_of(tmp_path)):
                await asyncio.sleep(0.005)

    run(main)


def test_a_second_process_follows_the_events_of_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with router(tmp_path, hold_at=5) as site, router(tmp_path) as other:
            response_id = (await begun(site, stream=True))["id"]
            following = asyncio.create_task(other.events(response_id))
            await site.in_progress(response_id)
            site.service.release.set()
            events = await following
            assert put_together(events) == (await other.at_end(response_id))["output"]
            assert other.service.requests == []

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_the_state_of_the_response_and_ends_its_stream(tmp_path: Path, stream: bool) -> None:
    async def main() -> None:
        async with router(tmp_path, error=GenerationError("worker_failed", "The engine broke.")) as site:
            response_id = (await begun(site, stream))["id"]
            response = await site.at_end(response_id)
            assert (response["status"], response["output"]) == ("failed", [])
            assert "broke" in response["error"]["message"]
            if stream:
                assert (await site.events(response_id))[-1]["response"] == response

    run(main)


def test_what_cannot_be_served_in_the_background_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        few = BackgroundConfig(max_running=1, max_unfinished=2)
        async with router(tmp_path, hold_at=0, background=few) as site:
            for fields, code, param in (
                ({"store": False}, 400, "background"),
                ({"model": "unknown"}, 404, "model"),
                ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
            ):
                body = {"model": MODEL, "input": "hi", "background": True, **fields}
                status, answer = await site.asked("POST", "", body)
                assert (status, answer["error"]["param"]) == (code, param)
            running, waiting = await site.created(), await site.created()
            status, answer = await site.asked("POST", "", {"model": MODEL, "input": "hi", "background": True})
            assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
            await site.in_progress(running["id"])
            assert (await site.asked("GET", f"/{waiting['id']}"))[1]["status"] == "queued"
            site.service.release.set()
            assert (await site.at_end(waiting["id"]))["status"] == "completed"
            assert (await site.at_end(running["id"]))["status"] == "completed"

    run(main)


def test_it_waits_for_room_and_counts_for_the_key_that_asked(tmp_path: Path) -> None:
    async def main() -> None:
        keys = tmp_path / "keys.yaml"
        entry = f"- {{name: a, sha256: {digest_of(b'key').hex()}, tenant: A, max_concurrent: 1}}\n"
        keys.write_text(f"keys:\n{entry}")
        async with router(tmp_path / "store", hold_at=0, keys=keys) as site:
            first, second = await site.created("key"), await site.created("key")
            await site.service.submitted.wait()
            assert [request.tenant for request in site.service.requests] == ["A"]
            site.service.release.set()
            for response in (first, second):
                assert (await site.at_end(response["id"], "key"))["status"] == "completed"

    run(main)


def test_the_python_client_follows_a_response_that_it_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with router(tmp_path) as site, openai_client(site) as client:
            stream = await client.responses.create(model=MODEL, input="hi", background=True, stream=True)
            first = await anext(aiter(stream))
            assert first.type == "response.created"
            response_id, number = first.response.id, first.sequence_number
            await stream.close()
            rest = await client.responses.retrieve(response_id, stream=True, starting_after=number)
            numbers = [event.sequence_number async for event in rest]
            assert numbers == list(range(1, len(numbers) + 1))
            done = await client.responses.retrieve(response_id)
            assert done.status == "completed"
            assert (await client.responses.cancel(response_id)).status == "completed"

    run(main)
