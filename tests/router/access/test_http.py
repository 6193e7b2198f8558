"""Keys, limits, usage and the admin port over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, AuthenticationError, PermissionDeniedError, RateLimitError

from slipstream.router.access import key_ring
from slipstream.router.access.access import Access
from slipstream.router.access.api_key import digest_of
from slipstream.router.api.anthropic.error_form import error_form
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import AdminConfig, HttpConfig, RouterConfig
from slipstream.router.front.front import Front
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.server import HttpServer
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FakeService, FrontUnderTest, Script, run

TEXT_IDS = [10, 11, 12, 13, 14]
SECRETS = {name: f"sk-slip-{name}" for name in ("alice", "bob", "root", "old", "narrow", "sharer")}


def key_text(without: str = "", **more: str) -> str:
    fields = {
        "alice": "tenant: research, requests_per_minute: 3, tokens_per_minute: 1000, max_concurrent: 2",
        "bob": "weight: 3",
        "root": "admin: true, max_priority: -5",
        "old": "expires: 2020-01-01",
        "narrow": "models: [other]",
        "sharer": "shared_cache: true",
        **more,
    }
    lines = [
        f"  - {{name: {name}, sha256: '{digest_of(SECRETS[name].encode()).hex()}', {rest}}}"
        for name, rest in fields.items()
        if name != without
    ]
    return "\n".join(["keys:", *lines, ""])


@contextlib.asynccontextmanager
async def guarded(
    folder: Path, script: Callable[[GenerateRequest], Script] | None = None, *, admin_port: bool = False
) -> AsyncIterator[tuple[FrontUnderTest, Access, int]]:
    """A front with the keys above. Yields it, its access and the admin port (0: none)."""
    keys = folder / "keys.yaml"
    if not keys.exists():
        keys.write_text(key_text())
    with ThreadPoolExecutor(2) as pool:
        tokenizer = Tokenizer.from_directory(MODEL_DIR, pool)
        service = FakeService(script or (lambda request: Script(TEXT_IDS, num_cached_tokens=1)))
        access = Access(AccessConfig(str(keys), str(folder / "usage.jsonl")), pool)
        access.open()
        under_test: FrontUnderTest
        handler = Front(
            Catalog.of([ServedModel(MODEL, tokenizer)]),
            service,
            lambda *_: None,
            lambda: under_test.server.num_connections,
            RouterConfig(admin=AdminConfig(port=0 if admin_port else None)),
            access,
        )
        server = HttpServer(
            HttpConfig(port=0),
            handler,
            ExchangeContext,
            check_caller=handler.check_caller,
            error_form_of=error_form,
        )
        admin = HttpServer(HttpConfig(port=0), handler.admin, ExchangeContext)
        under_test = FrontUnderTest(service, tokenizer, server, await server.start())
        port = await admin.start() if admin_port else 0
        try:
            yield under_test, access, port
        finally:
            await server.stop()
            await admin.stop()
            await access.close()
            await service.close()


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS.get(name, name)}"}


async def complete(site: FrontUnderTest, name: str, **fields: object) -> tuple[int, dict[str, str], dict[str, object]]:
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 5, **fields}
    status, headers, answer = await site.request("POST", "/v1/completions", body, bearer(name))
    return status, headers, orjson.loads(answer) if not fields.get("stream") else {}


def code_of(answer: dict[str, object]) -> object:
    error = answer["error"]
    assert isinstance(error, dict)
    return error["code"]


def in_folder(main: Callable[[Path], Awaitable[None]], folder: Path) -> None:
    run(lambda: main(folder))


def test_without_a_valid_key_every_path_but_health_is_a_401(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, access, _):
            for headers in (
                {},
                bearer("wrong"),
                bearer("old"),
                {"Authorization": "Basic eDp5"},
                {"Authorization": "Bearer"},
            ):
                for method, path in (
                    *(("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics"), ("GET", "/v1/usage")),
                    *(("GET", "/v1/requests"), ("GET", "/nowhere")),
                ):
                    status, got, body = await site.request(method, path, None, headers)
                    assert (status, code_of(orjson.loads(body))) == (401, "invalid_api_key"), (headers, path)
                    assert got["www-authenticate"] == "bearer"
            for path in ("/health/live", "/health/ready", "/health", "/ping"):
                assert (await site.request("GET", path))[0] == 200
            assert (await site.request("GET", "/v1/models", None, bearer("bob")))[0] == 200
            assert access.keys.num_unauthenticated == {"missing": 18, "unknown": 6, "expired": 6}
            assert site.service.requests == []

    in_folder(main, tmp_path)


def test_a_large_body_of_a_stranger_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            for length in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
                reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
                writer.write(
                    f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{length}\r\nAuthorization: Bearer x\r\n\r\n".encode()
                )
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 401 ")
                assert b"invalid_api_key" in answer
                writer.close()
                await writer.wait_closed()
            large = orjson.dumps({"model": MODEL, "max_tokens": 1, "messages": [], "system": " " * 100_000})
            for key, status, kind in (
                ("x", 401, "authentication_error"),
                (SECRETS["bob"], 400, "invalid_request_error"),
            ):
                got, _, body = await site.request("POST", "/v1/messages", large, {"x-api-key": key})
                assert (got, orjson.loads(body)["error"]["type"]) == (status, kind)
            status, _, answer = await complete(site, "bob", prompt=" " * 100_000)
            assert status == 400  # a key's body is read: there are too many tokens in it
            assert "context" in str(answer)

    in_folder(main, tmp_path)


def test_anthropics_clients_send_a_key_in_a_header_of_its_own_and_get_its_errors(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            message = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}

            async def sent(**headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                status, got, body = await site.request("POST", "/v1/messages", message, named)
                return status, got, orjson.loads(body)

            status, _, answer = await sent()
            assert (status, answer["error"]["type"]) == (401, "authentication_error")
            assert "x-api-key" in answer["error"]["message"]
            status, _, answer = await sent(x_api_key=SECRETS["narrow"])
            assert (status, answer["error"]["type"]) == (403, "permission_error")
            assert (await sent(x_api_key="wrong", Authorization=f"Bearer {SECRETS['bob']}"))[0] == 200
            for left in ("2", "1", "0"):
                status, headers, _ = await sent(x_api_key=SECRETS["alice"])
                assert (status, headers["anthropic-ratelimit-requests-remaining"]) == (200, left)
            status, headers, answer = await sent(x_api_key=SECRETS["alice"])
            assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
            reset = datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"].upper())
            assert 0 < (reset - datetime.now(UTC)).total_seconds() < 70

    in_folder(main, tmp_path)


def test_openais_client_raises_its_own_errors(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            url = f"http://127.0.0.1:{site.port}/v1"
            messages = [{"role": "user", "content": "hi"}]

            async def chat(name: str, **more: object) -> object:
                async with AsyncOpenAI(base_url=url, api_key=SECRETS.get(name, name), max_retries=0) as client:
                    return await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2, **more)

            with pytest.raises(AuthenticationError) as refused:
                await chat("wrong")
            assert refused.value.code == "invalid_api_key"
            with pytest.raises(PermissionDeniedError) as forbidden:
                await chat("narrow")
            assert forbidden.value.param == "model"
            with pytest.raises(PermissionDeniedError) as forbidden:
                await chat("bob", extra_body={"priority": -1})
            assert forbidden.value.param == "priority"
            await chat("root", extra_body={"priority": -5})
            for _ in range(3):
                await chat("alice")
            with pytest.raises(RateLimitError) as limited:
                await chat("alice")
            assert limited.value.code == "rate_limit_exceeded"
            assert 0 < int(limited.value.response.headers["retry-after"]) <= 20
            assert limited.value.response.headers["x-ratelimit-remaining-requests"] == "0"

    in_folder(main, tmp_path)


def test_requests_carry_the_tenant_its_weight_and_a_salt_of_its_own(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            await complete(site, "alice", user="somebody", cache_salt="pepper", session_id="s")
            await complete(site, "bob", cache_salt="pepper")
            await complete(site, "sharer")
            alice, bob, sharer = site.service.requests
            assert (alice.tenant, alice.weight, alice.cache_salt) == ("research", 1.0, "tenant:8:research:pepper")
            assert alice.session == "tenant:8:research:s"
            assert (bob.tenant, bob.weight, bob.cache_salt) == ("bob", 3.0, "tenant:3:bob:pepper")
            assert sharer.cache_salt == ""

    in_folder(main, tmp_path)


def test_limits_are_told_on_every_answer_and_tokens_are_settled(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            status, headers, _ = await complete(site, "alice", max_tokens=100)
            assert status == 200
            assert headers["x-ratelimit-limit-tokens"] == "1000"
            assert headers["x-ratelimit-remaining-tokens"] == str(1000 - 103)
            _, headers, _ = await complete(site, "alice", stream=True)  # the first took 8 in the end
            assert int(headers["x-ratelimit-remaining-tokens"]) >= 1000 - 8 - 8
            status, _, answer = await complete(site, "alice", n=3)
            assert (status, answer["error"]["param"]) == (400, "n")  # more choices than it may have at a time
            assert "x-ratelimit-limit-tokens" not in (await complete(site, "bob"))[1]

    in_folder(main, tmp_path)


def test_running_sequences_count_and_leave_with_the_client(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder, lambda request: Script(TEXT_IDS, hold_at=0)) as (site, access, _):
            _, leaving = await asyncio.open_connection("127.0.0.1", site.port)
            body = orjson.dumps({"model": MODEL, "prompt": [1], "n": 2})
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            leaving.write(f"{head}Authorization: {bearer('alice')['Authorization']}\r\n\r\n".encode() + body)
            await site.service.submitted.wait()
            status, headers, answer = await complete(site, "alice")
            assert (status, code_of(answer), headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
            assert access.num_limited == {("research", "concurrent"): 1}
            leaving.close()
            await leaving.wait_closed()
            await site.service.some_cancelled.wait()
            site.service.release.set()
            while access._limits["alice"].num_running:
                await asyncio.sleep(0)
            assert (await complete(site, "alice"))[0] == 200

    in_folder(main, tmp_path)


def test_usage_is_ones_own_or_all_for_an_admin_and_outlives_the_process(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            await complete(site, "alice")
            await complete(site, "bob", prompt=[[1, 2, 3], [4, 5]], n=2, stream=True)
        async with guarded(folder) as (site, _, _):
            await complete(site, "bob")

            async def usage(name: str) -> dict[str, dict[str, object]]:
                _, _, body = await site.request("GET", "/v1/usage", None, bearer(name))
                return {entry.pop("key"): entry for entry in orjson.loads(body)["data"]}

            bob = {"tenant": "bob", "model": MODEL, "num_requests": 2, "num_errors": 0, "prompt_tokens": 3 + 2 + 3}
            bob |= {"cached_tokens": 3, "completion_tokens": 4 * 5 + 5, "total_tokens": 8 + 25}
            assert await usage("bob") == {"bob": bob}
            assert await usage("narrow") == {}
            everybody = await usage("root")
            assert everybody["bob"] == bob
            assert everybody["alice"]["total_tokens"] == 8
            _, _, page = await site.request("GET", "/metrics", None, bearer("root"))
            assert b'slipstream:tenant_tokens_total{kind="output",tenant="bob"} 25.0' in page
            assert b'tenant="research"' in page

    in_folder(main, tmp_path)


def test_operators_pages_need_an_admin_and_others_see_requests_of_their_tenant_only(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            for path in ("/metrics", "/cluster/status", "/cluster/profile"):
                status, _, body = await site.request("GET", path, None, bearer("alice"))
                assert (status, code_of(orjson.loads(body))) == (403, "admin_only")
                assert (await site.request("GET", path, None, bearer("root")))[0] == 200
            _, _, answer = await complete(site, "alice")
            request_id = str(answer["id"])
            site.service.records[request_id].tenant = "research"
            path = f"/v1/requests/{request_id}/explain"
            found = {
                name: (await site.request("GET", path, None, bearer(name)))[0] for name in ("alice", "bob", "root")
            }
            assert found == {"alice": 200, "bob": 404, "root": 200}

    in_folder(main, tmp_path)


def test_who_sends_the_request_id_of_another_tenant_does_not_hide_its_record(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, _, _):
            ids = {}
            for name, tenant in (("alice", "research"), ("bob", "bob")):
                _, _, answer = await complete(site, name)
                ids[name] = str(answer["id"])
                record = site.service.records[ids[name]]
                record.tenant, record.names = tenant, ("same",)
            site.service.records["same"] = site.service.records[ids["bob"]]  # the latest of that name
            for name, expected in (("alice", 200), ("bob", 200), ("narrow", 404)):
                status, _, body = await site.request("GET", "/v1/requests/same/explain", None, bearer(name))
                assert status == expected
                if status == 200:
                    assert orjson.loads(body)["request_id"] == ids[name]

    in_folder(main, tmp_path)


def test_an_admin_port_has_what_operators_ask_and_the_api_port_no_longer(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with guarded(folder, admin_port=True) as (site, _, port):
            inside = FrontUnderTest(site.service, site.tokenizer, site.server, port)
            for path in ("/metrics", "/cluster/status", "/cluster/profile", "/health/ready", "/health/live"):
                assert (await inside.request("GET", path))[0] == 200
            assert (await inside.request("GET", "/v1/models"))[0] == 404
            for path in ("/metrics", "/cluster/status", "/cluster/profile"):
                assert (await site.request("GET", path, None, bearer("root")))[0] == 404
            _, _, answer = await complete(site, "alice")
            path = f"/v1/requests/{answer['id']}/explain"
            assert (await inside.request("GET", path))[0] == 200
            assert (await site.request("GET", path, None, bearer("bob")))[0] == 404

    in_folder(main, tmp_path)


def test_a_changed_file_holds_without_a_restart_and_a_broken_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_ring, "LOOK_EVERY_S", 0.01)

    async def main(folder: Path) -> None:
        keys = folder / "keys.yaml"

        def put(text: str) -> None:
            new = folder / "new"
            new.write_text(text)
            os.replace(new, keys)

        async with guarded(folder) as (site, access, _):

            async def until(name: str, status: int) -> None:
                while (await complete(site, name))[0] != status:
                    pass

            assert (await complete(site, "bob"))[0] == 200
            put("keys: [{name: bob}]")
            while not access.keys.num_reloads["failed"]:
                assert (await complete(site, "bob"))[0] == 200
            assert "the API keys stay as they were" in caplog.text
            assert "sha256" in caplog.text
            keys.unlink()
            while access.keys.num_reloads["failed"] < 2:
                assert (await complete(site, "bob"))[0] == 200
            put(key_text(without="bob"))
            await until("bob", 401)
            assert access.keys.num_reloads == {"failed": 2, "ok": 1}
            put(key_text(alice="tenant: research, requests_per_minute: 1"))
            await until("bob", 200)
            await until("alice", 200)
            await until("alice", 429)
            _, _, page = await site.request("GET", "/metrics", None, bearer("root"))
            assert b'slipstream:api_key_reloads_total{outcome="failed"} 2.0' in page
            assert b'slipstream:rate_limited_total{limit="requests",tenant="research"} 1.0' in page

    in_folder(main, tmp_path)


@pytest.mark.parametrize(("text", "level"), [("keys: []", logging.WARNING), (key_text(without="bob"), logging.INFO)])
def test_a_file_without_any_key_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, level: int
) -> None:
    monkeypatch.setattr(key_ring, "LOOK_EVERY_S", 0.01)
    caplog.set_level(logging.INFO)

    async def main(folder: Path) -> None:
        async with guarded(folder) as (_, access, _):
            (folder / "new").write_text(text)
            (folder / "new").replace(folder / "keys.yaml")
            async with asyncio.timeout(30):
                while not access.keys.num_reloads["ok"]:
                    await asyncio.sleep(0.01)

    in_folder(main, tmp_path)
    assert [one.levelno for one in caplog.records if "have changed" in one.getMessage()] == [level]


def test_a_key_that_is_gone_serves_nobody_although_nobody_has_called_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ring, "LOOK_EVERY_S", 0.01)

    async def main(folder: Path) -> None:
        async with guarded(folder) as (site, access, _):
            (folder / "new").write_text(key_text(without="bob"))
            (folder / "new").replace(folder / "keys.yaml")
            async with asyncio.timeout(30):
                while not access.keys.num_reloads["ok"]:
                    await asyncio.sleep(0.01)
            assert (await complete(site, "bob"))[0] == 401
            with pytest.raises(HttpError, match="Incorrect API key"):
                access.keys.caller_of(digest_of(SECRETS["bob"].encode()))

    in_folder(main, tmp_path)


def test_a_router_does_not_start_with_a_broken_key_file(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: [{name: a}]")
    with pytest.raises(ValueError, match="key 'a': sha256"):
        Access(AccessConfig(str(tmp_path / "keys.yaml"))).open()
    with pytest.raises(OSError, match=r"access\.usage_file"):
        Access(AccessConfig(usage_file=str(tmp_path / "no" / "usage"))).open()
