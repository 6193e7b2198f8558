"""Responses and conversations that are stored, and requests that go on from them."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from slipstream.router.access.api_key import digest_of
from slipstream.router.api.generation.prompts import PromptReader
from slipstream.router.api.openai.responses import answer_keeper, response_store
from slipstream.router.api.openai.responses.answer_keeper import ResponseKeeper
from slipstream.router.api.openai.responses.response_store import HistoryLimit, ResponseStore, conversation_objects
from slipstream.router.api.openai.responses.stored_items import input_id
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.http.failover.journal import Identity
from slipstream.router.parsers.parser_names import ParserNames
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreFullError
from slipstream.router.store.stored_object import StoredObject
from tests.support.router.fake_cluster import MODEL, FrontUnderTest, front, openai_client, run
from tests.support.router.openai_schemas import check
from tests.support.router.response_events import response_events

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
CALL = '<|tool_call|>{"name": "f", "arguments": {}}'
THINKING = ParserNames("auto", "qwen3")


def prompt_of(site: FrontUnderTest) -> str:
    token_ids = unpack_ids(site.service.requests[-1].prompt_ids)
    return str(site.tokenizer._tokenizer.decode(token_ids, skip_special_tokens=False))


async def asked(
    site: FrontUnderTest, method: str, path: str, body: object = None, key: str = ""
) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else None
    status, _, answer = await site.request(method, path, body, headers)
    return status, orjson.loads(answer)


async def created(site: FrontUnderTest, key: str = "", **fields: Any) -> dict[str, Any]:
    status, response = await asked(site, "POST", PATH, {"model": MODEL, "input": "hi", **fields}, key)
    assert status == 200, response
    return response


def test_a_response_goes_on_from_the_one_before_it_and_its_calls(tmp_path: Path) -> None:
    async def main() -> None:
        async with front(f"<think>Hm.</think>\n\nSee. {CALL}", parsers=THINKING, reason="stop", store=tmp_path) as site:
            first = await created(site, input="Begin.", tools=[TOOL], instructions="Not for long.")
            call = first["output"][-1]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
            second = await created(site, input=[result], previous_response_id=first["id"], tools=[TOOL])
            prompt = prompt_of(site)
            assert [prompt.index(text) for text in ("Begin.", "See.", '"f"', "42")]
            assert "Not for long." not in prompt
            third_items = [{**result, "call_id": second["output"][-1]["call_id"]}, {"role": "user", "content": "End?"}]
            third = await created(site, input=third_items, previous_response_id=second["id"], tools=[TOOL])
            assert prompt_of(site).count("42") == 2
            for response in (first, second, third):
                assert await asked(site, "GET", f"{PATH}/{response['id']}") == (200, response)
                check("Response", response)
            _, page = await asked(site, "GET", f"{PATH}/{third['id']}/input_items?order=asc&limit=100")
            check("ResponseItemList", page)
            kinds = [item["type"] for item in page["data"]]
            turn = ["reasoning", "message", "function_call", "function_call_output"]
            assert kinds == ["message", *turn, *turn, "message"]
            _, rest = await asked(
                site, "GET", f"{PATH}/{third['id']}/input_items?limit=3&after={page['data'][-2]['id']}"
            )
            assert [item["id"] for item in rest["data"]] == [item["id"] for item in page["data"][-3:-6:-1]]
            assert rest["has_more"]

    run(main)


def test_a_stream_is_stored_when_its_client_hears_that_it_is_complete(tmp_path: Path) -> None:
    async def main() -> None:
        async with front("abc", reason="stop", store=tmp_path) as site:
            _, _, answer = await site.post(PATH, input="hi", stream=True)
            completed = response_events(answer)[-1]
            stored = await asked(site, "GET", f"{PATH}/{completed['response']['id']}")
            assert stored == (200, completed["response"])
            assert completed["response"]["store"] is True

    run(main)


def test_references_stand_for_items_of_stored_responses(tmp_path: Path) -> None:
    async def main() -> None:
        async with front(f"<think>Hm.</think>\n\nSee. {CALL}", parsers=THINKING, reason="stop", store=tmp_path) as site:
            output = (await created(site, input="Begin.", tools=[TOOL]))["output"]
            references = [{"type": "item_reference", "id": item["id"]} for item in output]
            result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "42"}
            items = [{"role": "user", "content": "Begin."}, *references, result]
            second = await created(site, input=items, tools=[TOOL])
            assert "See." in prompt_of(site)
            _, page = await asked(site, "GET", f"{PATH}/{second['id']}/input_items?order=asc")
            assert [item["id"] for item in page["data"][1:4]] == [item["id"] for item in output]
            unknown = {"type": "item_reference", "id": "msg_" + "0" * 38}
            status, answer = await asked(site, "POST", PATH, {"model": MODEL, "input": [unknown]})
            assert (status, answer["error"]["param"]) == (404, "input[0].id")

    run(main)


def test_references_to_many_items_of_a_response_read_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = ObjectStore.get

    async def noted(store: ObjectStore, kind: str, object_id: str, owner: str) -> StoredObject | None:
        read.append(object_id)
        return await get(store, kind, object_id, owner)

    async def main() -> None:
        async with front("Said.", reason="stop", store=tmp_path) as site:
            items = [{"role": "user", "content": f"Line {number}."} for number in range(50)]
            first = await created(site, input=items)
            _, page = await asked(site, "GET", f"{PATH}/{first['id']}/input_items?order=asc&limit=100")
            references = [{"type": "item_reference", "id": item["id"]} for item in page["data"] + first["output"]]
            monkeypatch.setattr(ObjectStore, "get", noted)
            await created(site, input=references)
            assert read == [first["id"]]
            assert [prompt_of(site).count(text) for text in ("Line 0.", "Line 49.", "Said.")] == [1, 1, 1]

    run(main)


@pytest.mark.parametrize("bound", ["items", "bytes"])
@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
def test_a_conversation_that_is_too_long_is_refused_or_read_without_its_oldest_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, bound: str
) -> None:
    text = "x" * 5000

    async def main() -> None:
        async with front(CALL, parsers=THINKING, reason="stop", store=tmp_path) as site:
            site.service.max_model_len = 100_000
            goes_on = {}
            if by == "conversation":
                goes_on[by] = (await asked(site, "POST", "/v1/conversations", {}))[1]["id"]
            items: list[dict[str, str]] = [{"role": "user", "content": f"Begin. {text}"}]
            for number in range(6):
                response = await created(site, input=items, tools=[TOOL], **goes_on)
                if by == "previous_response_id":
                    goes_on = {by: response["id"]}
                call_id = response["output"][-1]["call_id"]
                items = [{"type": "function_call_output", "call_id": call_id, "output": f"Result {number}. {text}"}]
            if bound == "items":
                monkeypatch.setattr(response_store, "MAX_ITEMS", 7)
            else:
                monkeypatch.setattr(response_store, "MIN_HISTORY_BYTES", 3 * len(text))
                monkeypatch.setattr(response_store, "HISTORY_BYTES_PER_TOKEN", 0)
            if by == "conversation":
                monkeypatch.setattr(response_store, "FIRST_ITEMS", 3)
            body = {"model": MODEL, "input": items, "tools": [TOOL], **goes_on}
            for path in (PATH, f"{PATH}/input_tokens"):
                status, answer = await asked(site, "POST", path, body)
                error = answer["error"]
                assert (status, error["code"], error["param"]) == (400, "conversation_too_long", by)
            assert (await asked(site, "POST", PATH, {**body, "truncation": "auto"}))[0] == 200
            prompt = prompt_of(site)
            assert prompt.count("Result 5.") == prompt.count("Result 4.") == prompt.count("Result 3.") == 1
            assert prompt.count("Begin.") == prompt.count("Result 0.") == 0

    run(main)


def test_what_a_chain_has_of_instructions_and_tools_does_not_count_for_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "MIN_HISTORY_BYTES", 20_000)
    monkeypatch.setattr(response_store, "HISTORY_BYTES_PER_TOKEN", 0)

    async def main() -> None:
        async with front("Said.", reason="stop", store=tmp_path) as site:
            site.service.max_model_len = 100_000
            tool = {**TOOL, "description": "x" * 10_000}
            first = await created(site, input="Begin.", tools=[tool])
            for _ in range(3):
                first = await created(site, tools=[tool], previous_response_id=first["id"])
            assert prompt_of(site).count("Begin.") == 1

    run(main)


def test_counted_prompts_are_remembered_for_their_own_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants: list[str] = []
    of_chat = PromptReader.of_chat

    async def noted(reader: PromptReader, *args: Any, tenant: str = "", **fields: Any) -> bytes:
        tenants.append(tenant)
        return await of_chat(reader, *args, tenant=tenant, **fields)

    monkeypatch.setattr(PromptReader, "of_chat", noted)

    async def main() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text("".join(["keys:\n", *[key_line(name) for name in ("ann", "bob")]]))
        async with front("abc", store=tmp_path / "store", keys=keys) as site:
            counts = [
                (await asked(site, "POST", f"{PATH}/input_tokens", {"model": MODEL, "input": "hi"}, name))[1]
                for name in ("ann", "bob")
            ]
            for name in ("ann", "bob"):
                await created(site, name)
            prompt = site.service.requests[-1].prompt_ids
            assert [count["input_tokens"] for count in counts] == [len(prompt) // 4] * 2
            assert tenants[:2] == tenants[2:]
            assert tenants[0] != tenants[1]

    run(main)


def key_line(name: str) -> str:
    return f"  - {{name: {name}, sha256: '{digest_of(name.encode()).hex()}'}}\n"


def test_what_is_deleted_or_was_not_stored_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with front("abc", store=tmp_path) as site:
            kept, left = await created(site), await created(site, store=False)
            assert (kept["store"], left["store"]) == (True, False)
            status, deleted = await asked(site, "DELETE", f"{PATH}/{kept['id']}")
            assert (status, deleted["deleted"]) == (200, True)
            for response in (kept, left):
                for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                    status, answer = await asked(site, method, f"{PATH}/{response['id']}{path}")
                    assert (status, answer["error"]["code"]) == (404, "not_found")
                body = {"model": MODEL, "input": "x", "previous_response_id": response["id"]}
                status, answer = await asked(site, "POST", PATH, body)
                assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")

    run(main)


def test_another_tenant_sees_nothing_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text("".join(["keys:\n", *[key_line(name) for name in ("ann", "bob")]]))
        async with front("abc", store=tmp_path / "store", keys=keys) as site:
            response = await created(site, "ann")
            _, conversation = await asked(site, "POST", "/v1/conversations", {}, "ann")
            item = response["output"][0]["id"]
            for path in (f"{PATH}/{response['id']}", f"/v1/conversations/{conversation['id']}"):
                assert (await asked(site, "GET", path, key="ann"))[0] == 200
                for method in ("GET", "DELETE"):
                    assert (await asked(site, method, path, key="bob"))[0] == 404
            for fields in (
                {"previous_response_id": response["id"]},
                {"conversation": conversation["id"]},
                {"input": [{"type": "item_reference", "id": item}]},
            ):
                status, _ = await asked(site, "POST", PATH, {"model": MODEL, "input": "x", **fields}, "bob")
                assert status in (400, 404)
            assert (await asked(site, "GET", f"{PATH}/{response['id']}", key="ann"))[0] == 200

    run(main)


def test_a_conversation_grows_with_each_response(tmp_path: Path) -> None:
    async def main() -> None:
        async with front("Said.", reason="stop", store=tmp_path) as site:
            begin = {"metadata": {"a": "b"}, "items": [{"role": "user", "content": "Before."}]}
            _, conversation = await asked(site, "POST", "/v1/conversations", begin)
            check("ConversationResource", conversation)
            root = f"/v1/conversations/{conversation['id']}"
            for text in ("First.", "Second."):
                response = await created(site, input=text, conversation=conversation["id"])
                assert response["conversation"] == {"id": conversation["id"]}
                check("Response", response)
            prompt = prompt_of(site)
            assert [prompt.count(text) for text in ("Before.", "First.", "Said.", "Second.")] == [1, 1, 1, 1]
            _, page = await asked(site, "GET", f"{root}/items?order=asc")
            check("ConversationItemList", page)
            texts = [item["content"][0]["text"] for item in page["data"]]
            assert texts == ["Before.", "First.", "Said.", "Second.", "Said."]
            _, added = await asked(site, "POST", f"{root}/items", {"items": [{"role": "user", "content": "Third."}]})
            check("ConversationItemList", added)
            item = added["data"][0]
            assert await asked(site, "GET", f"{root}/items/{item['id']}") == (200, item)
            assert (await asked(site, "DELETE", f"{root}/items/{item['id']}"))[0] == 200
            assert (await asked(site, "GET", f"{root}/items/{item['id']}"))[0] == 404
            status, changed = await asked(site, "POST", root, {"metadata": {"c": "d"}})
            assert (status, changed["metadata"]) == (200, {"c": "d"})
            status, deleted = await asked(site, "DELETE", root)
            check("DeletedConversationResource", deleted)
            assert (await asked(site, "GET", f"{root}/items"))[0] == 404

    run(main)


def test_what_comes_to_a_conversation_that_was_deleted_meanwhile_does_not_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = ResponseKeeper.keep
    conversation = ResponseStore.conversation

    async def main() -> None:
        async with front("abc", reason="stop", store=tmp_path) as site:
            root = f"/v1/conversations/{(await asked(site, 'POST', '/v1/conversations', {}))[1]['id']}"
            item = {"role": "user", "content": "hi"}

            async def deleted() -> None:
                monkeypatch.undo()
                assert (await asked(site, "DELETE", root))[0] == 200

            async def keep_later(keeper: ResponseKeeper, end: bytes) -> bytes:
                await deleted()
                return await keep(keeper, end)

            async def read_before(store: ResponseStore, conversation_id: str, owner: str) -> StoredObject:
                found = await conversation(store, conversation_id, owner)
                await deleted()
                return found

            monkeypatch.setattr(ResponseKeeper, "keep", keep_later)
            response = await created(site, conversation=root.rpartition("/")[2])
            assert (await asked(site, "GET", f"{PATH}/{response['id']}")) == (200, response)
            _, other = await asked(site, "POST", "/v1/conversations", {})
            root = f"/v1/conversations/{other['id']}"
            monkeypatch.setattr(ResponseStore, "conversation", read_before)
            assert (await asked(site, "POST", f"{root}/items", {"items": [item]}))[0] == 404
            assert (await asked(site, "POST", root, {"metadata": {}}))[0] == 404
            assert (await asked(site, "GET", root))[0] == 404
        with closing(sqlite3.connect(tmp_path / "objects.sqlite")) as database:
            kinds = database.execute("SELECT DISTINCT kind FROM object ORDER BY kind").fetchall()
        assert kinds == [("response",), ("response_items",)]

    run(main)


def test_a_response_does_not_wait_for_a_store_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hung(store: ObjectStore, *objects: StoredObject) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ObjectStore, "put", hung)
    monkeypatch.setattr(answer_keeper, "STORE_S", 0.01)

    async def main() -> None:
        async with front("abc", reason="stop", store=tmp_path) as site:
            response = await created(site)
            assert (response["status"], response["store"]) == ("completed", False)

    run(main)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_x"])
def test_a_page_that_there_is_not_is_refused_by_its_field(tmp_path: Path, query: str) -> None:
    async def main() -> None:
        async with front("abc", store=tmp_path) as site:
            response = await created(site)
            status, answer = await asked(site, "GET", f"{PATH}/{response['id']}/input_items?{query}")
            assert (status, answer["error"]["param"]) == (400, query.partition("=")[0])

    run(main)


def test_a_response_that_cannot_be_stored_is_answered_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(store: ObjectStore, *objects: StoredObject) -> None:
        raise StoreFullError("there is no room")

    monkeypatch.setattr(ObjectStore, "put", full)

    async def main() -> None:
        async with front("abc", reason="stop", store=tmp_path) as site:
            whole = await created(site)
            _, _, answer = await site.post(PATH, input="hi", stream=True)
            events = response_events(answer)
            assert events[0]["response"]["store"] is True
            for response in (whole, events[-1]["response"]):
                assert (response["status"], response["store"]) == ("completed", False)
                assert (await asked(site, "GET", f"{PATH}/{response['id']}"))[0] == 404
            status, refused = await asked(site, "POST", "/v1/conversations", {})
            assert (status, refused["error"]["code"]) == (507, "store_full")

    run(main)


def test_the_python_client_goes_on_from_a_response_and_in_a_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        async with front("abc", reason="stop", store=tmp_path) as site, openai_client(site) as client:
            first = await client.responses.create(model=MODEL, input="hi")
            second = await client.responses.create(model=MODEL, input="more", previous_response_id=first.id)
            assert (await client.responses.retrieve(second.id)).output_text == "abc"
            items = [item async for item in client.responses.input_items.list(second.id)]
            assert [item.type for item in items] == ["message"] * 3
            conversation = await client.conversations.create(metadata={"a": "b"})
            await client.responses.create(model=MODEL, input="hi", conversation=conversation.id)
            listed = [item async for item in client.conversations.items.list(conversation.id)]
            assert len(listed) == 2
            await client.conversations.delete(conversation.id)
            await client.responses.delete(first.id)

    run(main)


def test_an_answer_that_another_router_has_begun_sees_its_conversation_as_it_was_then(tmp_path: Path) -> None:
    async def main() -> None:
        store = ObjectStore(StoreConfig(directory=str(tmp_path)))
        await store.open()
        now = int(time.time())
        responses, limit = ResponseStore(store), HistoryLimit.of(4096, None)
        begun = Identity(0xABC, now, 0, ModelId(MODEL, ""))
        await responses.add(StoredObject("conversation", "conv_1", "", now - 9.0, b'{"metadata":{}}'))
        added = [
            ("msg_1", now + 0.5),
            (input_id("message", f"{begun.number:032x}", 0), now + 0.7),
            ("msg_2", now + 1.5),
        ]
        for item_id, added_s in added:
            await responses.add(*conversation_objects([{"id": item_id}], "conv_1", "", added_s))
        assert [item["id"] for item in await responses.conversation_items("conv_1", "", limit, begun)] == ["msg_1"]
        assert len(await responses.conversation_items("conv_1", "", limit)) == 3
        await store.close()

    run(main)
