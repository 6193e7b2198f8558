"""Calls of the admin API that come through the router: a real router, and a server that plays the admin API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes, ExchangeContext
from slipstream.router.api.ui.admin_calls import MAX_BODY_BYTES
from slipstream.router.api.ui.token_trials import MAX_ADDRESSES, MAX_KNOWN, MAX_WRONG, SPAN_S, TokenTrials
from slipstream.router.config.router_config import HttpConfig, TlsConfig
from slipstream.router.config.ui_config import UiConfig
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.http.server import HttpServer
from slipstream.router.tls.client_tls import ClientTlsConfig
from tests.support.router.authority import Authority
from tests.support.router.fake_cluster import run
from tests.support.router.routing import routing

HERE = "127.0.0.1"
RIGHT = {"Authorization": "Bearer right"}


class PlayedAdminApi:
    """Answers what it was asked, to those who present the token."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, bytes]] = []
        self.routes = ApiRoutes()
        for method in ("GET", "POST"):
            self.routes.add_item(method, "/v1/", "", self.answer)

    async def answer(self, request: Request, exchange: ApiExchange, name: str) -> None:
        if name == "missing":
            raise HttpError(404, "Not Found", code="not_found")
        if request.headers.get(b"authorization") != b"Bearer right":
            raise HttpError(401, "this is not the token of this cluster", code="unauthorized")
        self.asked.append((request.method, name, request.query, request.body))
        assert not {b"cookie", b"x-forwarded-for"} & request.headers.keys()
        exchange.respond(202, b'{"done":true}')


@contextlib.asynccontextmanager
async def calling(
    fronts: int = 1, tls: TlsConfig | None = None, **ui: object
) -> AsyncIterator[tuple[PlayedAdminApi, httpx.AsyncClient]]:
    api = PlayedAdminApi()
    server = HttpServer(HttpConfig(port=0, tls=tls or TlsConfig()), api.routes, ExchangeContext)
    scheme = "https" if tls is not None else "http"
    config = UiConfig(**{"admin_url": f"{scheme}://127.0.0.1:{await server.start()}", **ui})
    try:
        async with (
            routing(fronts=fronts, ui=config) as (_, addresses, _),
            httpx.AsyncClient(base_url=f"http://{addresses.http}/ui/admin", timeout=20) as client,
        ):
            yield api, client
    finally:
        await server.stop()


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_call_reaches_the_admin_api_as_it_was_made(fronts: int) -> None:
    async def main() -> None:
        async with calling(fronts) as (api, client):
            question = {"role": "decode", "replicas": 2}
            answer = await client.post("/v1/fleet/scale?reason=more+load", json=question, headers=RIGHT)
            assert (answer.status_code, answer.json()) == (202, {"done": True})
            assert answer.headers["cache-control"] == "no-store"
            ((method, name, query, body),) = api.asked
            assert (method, name, query) == ("POST", "fleet/scale", "reason=more+load")
            assert b'"decode"' in body
            assert (await client.get("/v1/workers/a%20b/x", headers={**RIGHT, "Cookie": "a=b"})).status_code == 202
            assert api.asked[-1][1] == "workers/a b/x"

    run(main, deadline_s=110)


def test_only_its_own_paths_are_called_with_a_token_and_a_small_body() -> None:
    async def main() -> None:
        async with calling() as (api, client):
            assert (await client.get("/v1/fleet")).status_code == 401
            wrong = await client.get("/v1/fleet", headers={"Authorization": "Bearer wrong"})
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "unauthorized")
            for path in ("/metrics", "/docs", "/v1/%2e%2e/metrics", "/v2/models", "/http://127.0.0.1:1/v1/x"):
                assert (await client.get(path, headers=RIGHT)).status_code == 404, path
            deleted = await client.delete("/v1/fleet", headers=RIGHT)
            assert (deleted.status_code, deleted.headers["allow"]) == (405, "GET, POST, HEAD, OPTIONS")
            large = await client.post("/v1/fleet/scale", content=b"x" * (MAX_BODY_BYTES + 1), headers=RIGHT)
            assert large.status_code == 413
            assert api.asked == []

    run(main)


def test_after_many_wrong_tokens_only_known_ones_are_passed_on() -> None:
    async def main() -> None:
        async with calling() as (_, client):
            assert (await client.get("/v1/fleet", headers=RIGHT)).status_code == 202
            statuses = [
                (await client.get("/v1/fleet", headers={"Authorization": f"Bearer {num}"})).status_code
                for num in range(MAX_WRONG + 1)
            ]
            assert statuses == [401] * MAX_WRONG + [429]
            assert (await client.get("/v1/fleet", headers=RIGHT)).status_code == 202

    run(main)


def test_wrong_tokens_keep_no_administrator_out_who_is_at_another_address() -> None:
    async def main() -> None:
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with calling() as (_, client), httpx.AsyncClient(transport=elsewhere, timeout=20) as admin:
            for num in range(MAX_WRONG):
                await client.get("/v1/fleet", headers={"Authorization": f"Bearer {num}"})
            assert (await client.get("/v1/fleet", headers=RIGHT)).status_code == 429
            assert (await admin.get(f"{client.base_url}v1/fleet", headers=RIGHT)).status_code == 202

    run(main)


def test_a_path_that_the_admin_api_lacks_makes_no_token_a_known_one() -> None:
    async def main() -> None:
        async with calling() as (_, client):
            assert (await client.get("/v1/fleet", headers=RIGHT)).status_code == 202
            for num in range(MAX_KNOWN + MAX_WRONG):
                path = "missing" if num < MAX_KNOWN else "fleet"
                await client.get(f"/v1/{path}", headers={"Authorization": f"Bearer {num}"})
            assert (await client.get("/v1/fleet", headers={"Authorization": "Bearer 0"})).status_code == 429
            assert (await client.get("/v1/fleet", headers=RIGHT)).status_code == 202

    run(main)


def test_an_admin_api_that_does_not_answer_is_named() -> None:
    async def main() -> None:
        async with calling(admin_url="http://127.0.0.1:9") as (_, client):
            answer = await client.get("/v1/fleet", headers=RIGHT)
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "admin_api_unreachable")

    run(main)


def test_an_admin_api_over_tls_is_called_only_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.issue("driver")
    served = TlsConfig(files.cert_file, files.key_file)
    other = Authority(tmp_path / "other").cert

    async def main() -> None:
        for ca_file, status, said in (
            (str(authority.cert), 202, '"done"'),
            (str(other), 502, "certificate verify failed"),
            (None, 502, "certificate verify failed"),
            (str(tmp_path / "none"), 502, "ca_file: "),
        ):
            async with calling(tls=served, admin_tls=ClientTlsConfig(ca_file)) as (api, client):
                answer = await client.get("/v1/fleet", headers=RIGHT)
                assert (answer.status_code, said in answer.text) == (status, True), answer.text
                assert len(api.asked) == (status == 202)

    run(main)


def test_calls_that_are_turned_off_are_not_there() -> None:
    async def main() -> None:
        async with calling(admin_calls=False) as (api, client):
            assert (await client.get("/v1/fleet", headers=RIGHT)).status_code == 404
            assert api.asked == []

    run(main)


def test_wrong_tokens_are_forgotten_after_the_span_and_few_right_ones_are_kept() -> None:
    trials = TokenTrials()
    for num in range(MAX_KNOWN + 1):
        trials.note(HERE, b"right %d" % num, 0.0, is_right=True)
    for _ in range(MAX_WRONG):
        trials.note(HERE, b"wrong", 1.0, is_right=False)
    assert trials.wait_s(HERE, b"other", 2.0) == SPAN_S - 1.0
    assert trials.wait_s(HERE, b"right 0", 2.0) > 0
    assert trials.wait_s(HERE, b"right 1", 2.0) == 0
    trials.note(HERE, b"right 1", 2.0, is_right=False)  # it was revoked
    assert trials.wait_s(HERE, b"right 1", 2.0) > 0
    assert trials.wait_s(HERE, b"other", 1.0 + SPAN_S) == 0


@pytest.mark.parametrize(
    ("address", "is_held_back"),
    [
        ("10.0.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("10.0.0.2", False),
        ("2001:db8::1", True),
        ("2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", False),
        ("fe80::2%eth0", True),
        ("", False),
    ],
)
def test_wrong_tokens_hold_back_those_of_the_same_network(address: str, is_held_back: bool) -> None:
    trials = TokenTrials()
    for network in ("10.0.0.1", "2001:db8::2", "fe80::1%eth1"):
        for _ in range(MAX_WRONG):
            trials.note(network, b"wrong", 1.0, is_right=False)
    assert (trials.wait_s(address, b"other", 2.0) > 0) == is_held_back


def test_the_counts_of_many_addresses_take_bounded_memory() -> None:
    trials = TokenTrials()
    for num in range(MAX_WRONG):
        trials.note(HERE, b"%d" % num, 0.0, is_right=False)
    for num in range(MAX_ADDRESSES):
        assert trials.wait_s(HERE, b"other", 1.0) > 0
        trials.note(f"10.1.{num >> 8}.{num & 255}", b"wrong", 1.0, is_right=False)
    assert trials.wait_s(HERE, b"other", 1.0) == 0


@pytest.mark.parametrize(
    "url", ["ftp://a:1", "http://a", "http://a:1/path", "http://:1", "https://a", "http://[::1", "http://a:99999"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="admin_url must be"):
        UiConfig(admin_url=url)


def test_certificates_are_refused_where_the_admin_api_is_asked_without_tls() -> None:
    with pytest.raises(ValueError, match="admin_url must be https://HOST:PORT where there is admin_tls"):
        UiConfig(admin_url="http://a:1", admin_tls=ClientTlsConfig("ca.pem"))
