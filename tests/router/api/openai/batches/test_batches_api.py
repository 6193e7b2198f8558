"""Batches over HTTP, with OpenAI's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError
from openai.types import Batch

from slipstream.router.access.api_key import digest_of
from slipstream.router.api.openai.batches import batch_run, batch_runner
from slipstream.router.api.openai.batches.batch import FINAL
from slipstream.router.api.openai.batches.batch_input import GENERATING
from slipstream.router.config.batches_config import BatchesConfig
from tests.support.router.fake_cluster import MODEL, front, openai_client, run
from tests.support.router.until import until

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_runner, "LOOK_EVERY_S", 0.02)


def line(custom_id: str, url: str = CHAT, **body: object) -> bytes:
    fields = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **body}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": fields}) + b"\n"


async def begun(client: AsyncOpenAI, text: bytes, endpoint: str = CHAT) -> Batch:
    file = await client.files.create(file=("in.jsonl", text), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        metadata={"made": "here"},
    )


async def ended(client: AsyncOpenAI, batch_id: str) -> Batch:
    async def is_over() -> bool:
        return (await client.batches.retrieve(batch_id)).status in FINAL

    await until(is_over)
    return await client.batches.retrieve(batch_id)


def test_a_batch_is_served_as_requests_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with front("Hello.", store=tmp_path) as site, openai_client(site) as client:
            text = line("a") + line("b", temperature=99) + line("c", model="unknown") + line("d", priority=-5)
            batch = await begun(client, text)
            assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"made": "here"})
            assert batch.expires_at == batch.created_at + 86_400
            batch = await ended(client, batch.id)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.to_dict() == {"total": 4, "completed": 2, "failed": 2}
            assert batch.output_file_id is not None
            assert batch.error_file_id is not None
            done = [orjson.loads(one) for one in (await client.files.content(batch.output_file_id)).text.splitlines()]
            assert [one["custom_id"] for one in done] == ["a", "d"]
            assert done[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello."
            failed = [orjson.loads(one) for one in (await client.files.content(batch.error_file_id)).text.splitlines()]
            statuses = [(one["custom_id"], one["response"]["status_code"]) for one in failed]
            assert statuses == [("b", 400), ("c", 404)]
            assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
            assert [one.purpose async for one in client.files.list()] == ["batch_output", "batch_output", "batch"]
            assert {(request.is_background, request.priority) for request in site.service.requests} == {(True, 0)}
            _, _, page = await site.request("GET", "/metrics")
            assert b'slipstream:batch_lines_total{outcome="completed"} 2.0' in page

    run(main)


def test_completions_are_served_and_a_url_of_another_endpoint_is_a_mistake(tmp_path: Path) -> None:
    async def main() -> None:
        async with front("Hello.", store=tmp_path) as site, openai_client(site) as client:
            url = "/v1/completions"
            text = orjson.dumps(
                {"custom_id": "a", "method": "POST", "url": url, "body": {"model": MODEL, "prompt": "x"}}
            )
            batch = await ended(client, (await begun(client, text, url)).id)
            assert (batch.status, batch.error_file_id) == ("completed", None)
            batch = await ended(client, (await begun(client, line("a"), url)).id)
            assert batch.status == "failed"
            assert batch.errors is not None
            assert batch.errors.data is not None
            assert [(one.line, one.code, one.param) for one in batch.errors.data] == [(1, "mismatched_url", "url")]

    run(main)


def test_a_batch_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with front(store=tmp_path) as site, openai_client(site) as client:
            file = await client.files.create(file=("in.jsonl", line("a")), purpose="batch")
            for param, fields in {
                "endpoint": {"endpoint": "/v1/images/edits"},
                "completion_window": {"completion_window": "soon"},
                "metadata": {"metadata": {str(n): "x" for n in range(17)}},
            }.items():
                body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **fields}
                status, _, answer = await site.request("POST", "/v1/batches", body)
                assert (status, orjson.loads(answer)["error"]["param"]) == (400, param)
                if param == "endpoint":  # each of them is served; no tensor model is
                    assert f"must be {' or '.join(GENERATING)}, got" in orjson.loads(answer)["error"]["message"]
            with pytest.raises(NotFoundError, match="file-none"):
                await client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
            with pytest.raises(NotFoundError):
                await client.batches.retrieve("batch_none")
            with pytest.raises(BadRequestError):
                await client.batches.list(after="batch_none")

    run(main)


def test_a_cancelled_batch_ends_soon_and_an_ended_one_cannot_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        script = {"hold_at": 0}
        async with (
            front("Hello.", store=tmp_path, **script) as site,
            openai_client(site) as client,
        ):
            batch = await begun(client, line("a") + line("b"))
            await site.service.submitted.wait()
            assert (await client.batches.cancel(batch.id)).status == "cancelling"
            batch = await ended(client, batch.id)
            assert (batch.status, batch.output_file_id) == ("cancelled", None)
            assert all(stream.finish is not None for stream in site.service.streams.values())
            with pytest.raises(APIStatusError) as error:
                await client.batches.cancel(batch.id)
            assert error.value.status_code == 409

    run(main)


def test_lines_are_served_with_the_key_of_the_batch_and_only_its_tenant_sees_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    entries = [{"name": name, "sha256": digest_of(name.encode()).hex()} for name in ("alice", "bob")]
    keys.write_bytes(orjson.dumps({"keys": entries}))

    async def main() -> None:
        async with front("Hello.", store=tmp_path / "store", keys=keys) as site:

            async def call(who: str, method: str, path: str) -> dict[str, Any]:
                _, _, answer = await site.request(method, path, None, {"Authorization": f"Bearer {who}"})
                found: dict[str, Any] = orjson.loads(answer)
                return found

            url = f"http://127.0.0.1:{site.port}/v1"
            async with AsyncOpenAI(base_url=url, api_key="alice", max_retries=0) as client:
                batch = await ended(client, (await begun(client, line("a") + line("b"))).id)
                assert batch.status == "completed"
                assert {request.tenant for request in site.service.requests} == {"alice"}
            usage = await call("alice", "GET", "/v1/usage")
            assert [(one["key"], one["num_requests"]) for one in usage["data"]] == [("alice", 2)]
            assert (await call("bob", "GET", f"/v1/batches/{batch.id}"))["error"]["code"] == "batch_not_found"
            assert (await call("bob", "GET", "/v1/batches"))["data"] == []
            output = await call("bob", "GET", f"/v1/files/{batch.output_file_id}/content")
            assert output["error"]["code"] == "file_not_found"

    run(main)


def test_a_dispatcher_with_front_processes_leaves_batches_to_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            front("Hello.", store=tmp_path, frontends=2) as dispatcher,
            openai_client(dispatcher) as client,
            front("Hello.", store=tmp_path) as other,
        ):
            batch = await ended(client, (await begun(client, line("a"))).id)
            assert batch.status == "completed"
            assert (len(dispatcher.service.requests), len(other.service.requests)) == (0, 1)

    run(main)


def test_a_tenant_may_have_only_so_many_batches_that_are_not_over(tmp_path: Path) -> None:
    async def main() -> None:
        config = BatchesConfig(max_tenant_unfinished=2)
        async with (
            front("Hello.", store=tmp_path, batches=config, hold_at=0) as site,
            openai_client(site) as client,
        ):
            batches = [await begun(client, line("a")) for _ in range(2)]
            with pytest.raises(RateLimitError, match="max_tenant_unfinished") as error:
                await begun(client, line("a"))
            assert error.value.code == "too_many_batches"
            await client.batches.cancel(batches[0].id)
            await ended(client, batches[0].id)
            await begun(client, line("a"))
            site.service.release.set()

    run(main)
