"""What pages of other origins may do, and OPTIONS."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from slipstream.router.api.generation.generation_flow import MAX_TOKENS_HEADER
from slipstream.router.api.openai.body.unknown_fields import HEADER as IGNORED_HEADER
from slipstream.router.config.router_config import HttpConfig
from slipstream.router.http.cors import EXPOSED, CorsPolicy
from slipstream.router.http.server import HttpServer
from tests.support.router.fake_cluster import HTTP, MODEL, front, run
from tests.support.router.http_site import CONFIG, Site
from tests.support.router.raw_client import Client

APP = "https://app.example.com"
OURS = replace(HTTP, cors_origins=(APP, "tauri://localhost"))
PREFLIGHT = {
    "Origin": APP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_of_an_allowed_origin_may_read_answers_and_their_headers(stream: bool) -> None:
    async def main() -> None:
        async with front("abc", http=OURS) as site:
            body = {"model": MODEL, "prompt": "a", "stream": stream}
            status, headers, _ = await site.request("POST", "/v1/completions", body, {"Origin": APP})
            assert status == 200
            assert headers["access-control-allow-origin"] == APP
            assert headers["access-control-expose-headers"] == EXPOSED
            assert headers["vary"] == "origin"
            assert "access-control-allow-credentials" not in headers

    run(main)


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/nowhere", {}, b"", 404),
        ("/v1/completions", {}, b"{", 400),
        ("/v1/completions", {"Content-Length": "99999999"}, b"", 413),  # refused by its header
        ("/v1/completions", {"Expect": "a miracle"}, b"", 417),
    ],
)
def test_a_page_may_read_errors_as_well(path: str, headers: dict[str, str], body: bytes, status: int) -> None:
    async def main() -> None:
        async with front("abc", http=OURS) as site:
            got, answered, answer = await site.request("POST", path, body, {"Origin": APP, **headers})
            assert (got, answered["access-control-allow-origin"]) == (status, APP)
            assert "error" in orjson.loads(answer)

    run(main)


def test_a_page_may_read_every_header_that_the_api_adds() -> None:
    assert {MAX_TOKENS_HEADER, IGNORED_HEADER} <= set(EXPOSED.split(", "))


def test_other_origins_and_clients_without_one_are_answered_as_ever() -> None:
    async def main() -> None:
        async with front("abc", http=OURS) as site:
            for given in ({"Origin": "https://evil.example.com"}, {"Origin": "null"}, {}):
                status, headers, _ = await site.request("GET", "/v1/models", None, given)
                assert status == 200
                assert headers["vary"] == "origin"  # or a cache would hand this answer to the allowed page
                assert not [name for name in headers if name.startswith("access-control")]
            status, headers, _ = await site.request("OPTIONS", "/v1/models", None, PREFLIGHT | {"Origin": "http://x"})
            assert not [name for name in headers if name.startswith("access-control")]

    run(main)


def test_a_preflight_is_told_all_that_clients_need() -> None:
    async def main() -> None:
        async with front("abc", http=OURS) as site:
            status, headers, body = await site.request("OPTIONS", "/v1/chat/completions", None, PREFLIGHT)
            assert (status, body) == (204, b"")
            assert headers["access-control-allow-origin"] == APP
            assert "post" in headers["access-control-allow-methods"]
            assert headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
            assert int(headers["access-control-max-age"]) > 0
            assert "content-length" not in headers  # RFC 9110, 8.6

    run(main)


def test_a_preflight_cannot_write_header_lines_of_its_own() -> None:
    async def main() -> None:
        async with front("abc", http=OURS) as site:
            asked = PREFLIGHT | {"Access-Control-Request-Headers": 'x"; y: (z)'}
            status, headers, _ = await site.request("OPTIONS", "/v1/models", None, asked)
            assert status == 204
            assert "access-control-allow-headers" not in headers

    run(main)


def test_with_a_star_all_pages_may_read() -> None:
    policy = CorsPolicy(["*"])
    assert "access-control-allow-origin: *\r\n" in policy.lines_for(b"https://other.example")
    assert policy.lines_for(None) == ""


@pytest.mark.parametrize("configured", ["https://App.Example.com:443", "https://app.example.com"])
def test_an_origin_is_compared_as_browsers_write_it(configured: str) -> None:
    assert APP in CorsPolicy([configured]).lines_for(APP.encode())
    assert "allow-origin" not in CorsPolicy([configured]).lines_for(b"https://app.example.com:8443")


@pytest.mark.parametrize(
    "origin", ["app.example.com", "https://app.example.com/", "https://*.example.com", "https://a b", "", "a,b", "**"]
)
def test_what_is_no_origin_is_refused_by_name_and_value(origin: str) -> None:
    with pytest.raises(ValueError, match=r"^cors_origins must be") as error:
        HttpConfig(cors_origins=("*", origin))
    assert repr(origin) in str(error.value)


@pytest.mark.parametrize(
    ("path", "allow"),
    [("/hello", "get, head, options"), ("/echo", "post, options"), ("/items/a/b", "get, head, options")],
)
def test_without_cors_options_tells_the_methods(path: str, allow: str) -> None:
    async def main() -> None:
        server = HttpServer(CONFIG, Site().routes, lambda: None)
        client = await Client.connect(await server.start())
        for asked in (path, "*", "/hello"):  # on one connection: no body follows
            client.send(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\nOrigin: %b\r\n\r\n" % (asked.encode(), APP.encode()))
            head = (await client.reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 204 ")
            assert "access-control" not in head
            if asked == path:
                assert f"allow: {allow}\r\n" in head
        await client.close()
        await server.stop()

    run(main)
