"""The page's files over real HTTP: what a browser is told about them, and where they are not served."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from slipstream.router.api.exchange_context import ApiRoutes, ExchangeContext
from slipstream.router.api.ui.built_page import is_built
from slipstream.router.api.ui.page import serve_page
from slipstream.router.api.ui.page_files import PageFiles
from slipstream.router.config.router_config import OWN_SEGMENTS, HttpConfig, RouterConfig
from slipstream.router.config.ui_config import UiConfig
from slipstream.router.http.server import HttpServer
from tests.router.access.test_http import guarded
from tests.support.router.fake_cluster import run

SCRIPT = b"console.log('a script');\n" * 100


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(b"<!doctype html><title>t</title>")
    (tmp_path / "assets" / "index-3fa9.js").write_bytes(SCRIPT)
    return tmp_path


@contextlib.asynccontextmanager
async def serving(folder: Path, prefix: str = "") -> AsyncIterator[httpx.AsyncClient]:
    routes = ApiRoutes()
    PageFiles(folder).add_to(routes)
    server = HttpServer(HttpConfig(port=0, path_prefix=prefix), routes, ExchangeContext)
    url = f"http://127.0.0.1:{await server.start()}"
    try:
        async with httpx.AsyncClient(base_url=url) as client:
            yield client
    finally:
        await server.stop()


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_the_page_is_served_with_a_policy_that_allows_no_other_host_and_no_inline_script(
    built: Path, prefix: str
) -> None:
    async def main() -> None:
        async with serving(built, prefix) as client:
            moved = await client.get(f"{prefix}/ui")
            assert (moved.status_code, moved.headers["location"]) == (308, "ui/")  # relative: below any prefix
            page = await client.get(f"{prefix}/ui", follow_redirects=True)
            assert (page.status_code, page.url.path) == (200, f"{prefix}/ui/")
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["referrer-policy"] == "no-referrer"

    run(main)


def test_files_are_compressed_for_clients_that_can_read_that(built: Path) -> None:
    async def main() -> None:
        async with serving(built) as client:
            path = "/ui/assets/index-3fa9.js"
            plain = await client.get(path, headers={"Accept-Encoding": "identity"})
            assert (plain.content, plain.headers.get("content-encoding")) == (SCRIPT, None)
            assert "immutable" in plain.headers["cache-control"]
            assert (await client.get("/ui/")).headers["cache-control"] == "no-cache"
            for refusal in ("gzip;q=0", "br, gzip; q=0.000", "x-gzip"):
                refused = await client.get(path, headers={"Accept-Encoding": refusal})
                assert "content-encoding" not in refused.headers, refusal
            async with client.stream("GET", path, headers={"Accept-Encoding": "br, gzip;q=0.5"}) as zipped:
                raw = b"".join([part async for part in zipped.aiter_raw()])
            assert zipped.headers["content-encoding"] == "gzip"
            assert len(raw) < len(SCRIPT) / 5
            assert gzip.decompress(raw) == SCRIPT
            (built / "assets" / "index-3fa9.js").write_bytes(b"changed")
            assert (await client.get(path)).content == SCRIPT  # read once

    run(main)


def test_a_file_is_not_sent_again_to_a_cache_that_has_it_in_the_same_encoding(built: Path) -> None:
    async def main() -> None:
        async with serving(built) as client:
            path = "/ui/assets/index-3fa9.js"
            tags = {}
            for encoding in ("identity", "gzip"):
                first = await client.get(path, headers={"Accept-Encoding": encoding})
                tag = tags[encoding] = first.headers["etag"]
                assert first.headers["vary"] == "accept-encoding"
                for listed in (tag, f"W/{tag}", f'"other", {tag}', f'{tag},"other"', "*"):
                    asked = {"Accept-Encoding": encoding, "If-None-Match": listed}
                    same = await client.get(path, headers=asked)
                    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag), listed
                    assert {"content-length", "content-encoding"}.isdisjoint(same.headers)
                for listed in ('"other"', f'"x{tag[1:]}', tag.strip('"'), f'{tag[:-1]}-br"', ""):
                    asked = {"Accept-Encoding": encoding, "If-None-Match": listed}
                    assert (await client.get(path, headers=asked)).status_code == 200, listed
            assert tags["identity"] != tags["gzip"]  # both are strong, and the bytes are not the same
            crossed = {"Accept-Encoding": "gzip", "If-None-Match": tags["identity"]}
            assert (await client.get(path, headers=crossed)).status_code == 200

    run(main)


@pytest.mark.parametrize("name", ["other.js", "%2e%2e/secret", "assets/../../secret", "assets", "admin/v1/fleet"])
def test_a_name_that_is_no_file_of_the_page_is_not_found(built: Path, name: str) -> None:
    (built.parent / "secret").write_text("no")

    async def main() -> None:
        async with serving(built) as client:
            assert (await client.get(f"/ui/{name}")).status_code == 404

    run(main)


def test_without_a_build_the_page_says_how_to_have_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as client:
            answer = await client.get("/ui/")
            assert answer.status_code == 404
            assert "scripts/ui/build" in answer.text
            assert "default-src 'none'" in answer.headers["content-security-policy"]

    run(main)


def test_the_page_needs_no_key_and_what_it_shows_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as (site, _, _):
            assert (await site.request("GET", "/ui/"))[0] == (200 if is_built() else 404)
            assert (await site.request("GET", "/ui"))[0] == 308
            assert (await site.request("GET", "/cluster/live"))[0] == 401
            assert (await site.request("GET", "/uix"))[0] == 401

    run(main)


def test_a_page_that_is_turned_off_is_not_there() -> None:
    routes = ApiRoutes()
    serve_page(RouterConfig(ui=UiConfig(enabled=False, admin_url="http://127.0.0.1:1")), routes, calls_admin=True)
    assert not routes.has("/ui/")
    assert not routes.has("/ui")


def test_a_path_prefix_cannot_hide_the_page() -> None:
    assert "ui" in OWN_SEGMENTS
    with pytest.raises(ValueError, match="path_prefix"):
        HttpConfig(path_prefix="/ui")
