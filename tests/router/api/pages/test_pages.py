"""The pages for people, and paths below a prefix."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from slipstream.router.api.ui.built_page import is_built
from slipstream.router.config.router_config import OWN_SEGMENTS, HttpConfig
from tests.router.access.test_http import bearer, guarded
from tests.support.router.fake_cluster import HTTP, MODEL, FrontUnderTest, front, run

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def ask(site: FrontUnderTest, path: str, headers: dict[str, str] | None = None) -> tuple[dict[str, str], bytes]:
    status, got, body = await site.request("GET", path, None, headers)
    assert status == 200, (path, body)
    return got, body


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_every_link_of_the_home_page_leads_somewhere(prefix: str) -> None:
    async def main() -> None:
        async with front("abc", http=replace(HTTP, path_prefix=prefix)) as site:
            headers, page = await ask(site, f"{prefix}/", BROWSER)
            assert headers["content-type"].startswith("text/html")
            assert MODEL in page.decode()
            links = re.findall(r'href="([^"]*)"', page.decode())
            assert {"docs", "openapi.json", "v1/models", "health/ready", "metrics"} == set(links) - {"ui/"}
            assert ("ui/" in links) == is_built()
            for link in links:
                await ask(site, f"{prefix}/{link}")
            _, docs = await ask(site, f"{prefix}/docs")
            for link in re.findall(r'(?:href|src)="([^"]*)"', docs.decode()):
                headers, _ = await ask(site, f"{prefix}/{link}")
            assert "://" not in page.decode() + docs.decode()  # nothing from another host

    run(main)


def test_programs_get_the_home_page_as_json() -> None:
    async def main() -> None:
        async with front("abc") as site:
            headers, body = await ask(site, "/", {"Accept": "*/*"})
            reply = orjson.loads(body)
            assert (headers["content-type"], headers["vary"]) == ("application/json", "accept")
            assert (reply["name"], reply["model"]) == ("slipstream", MODEL)
            for link in reply["links"].values():
                await ask(site, f"/{link}")

    run(main)


def test_the_openapi_document_has_every_route_and_the_fields_of_its_body() -> None:
    async def main() -> None:
        async with front("abc") as site:
            reply = orjson.loads((await ask(site, "/openapi.json"))[1])
            routes = site.server._handler._routes  # type: ignore[attr-defined]
            served = {(path, method) for path, methods in routes._exact.items() for method in methods}
            served |= {(f"{item.prefix}{{id}}{item.suffix}", item.method) for item in routes._items}
            described = {(path, method.upper()) for path, one in reply["paths"].items() for method in one}
            assert {path for path, _ in served - described} == {
                *("/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/ui", "/ui/", "/ui/{id}")
            }
            assert described <= served
            for path, one in reply["paths"].items():
                for operation in one.values():
                    assert operation["summary"], path
            chat = reply["paths"]["/v1/chat/completions"]["post"]
            name = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert {"messages", "temperature", "response_format"} <= set(
                reply["components"]["schemas"][name]["properties"]
            )
            assert reply["components"]["schemas"][name]["properties"]["model"]["examples"] == [MODEL]
            for reference in re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', orjson.dumps(reply).decode()):
                assert reference in reply["components"]["schemas"]
            assert {path.split("/")[1] for path, _ in served} - {""} <= OWN_SEGMENTS  # no prefix may shadow them

    run(main)


def test_with_keys_the_pages_need_none_and_say_nothing_of_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as (site, _, _):
            for headers in (BROWSER, {}):
                _, page = await ask(site, "/", headers)
                assert MODEL not in page.decode()
            reply = orjson.loads((await ask(site, "/openapi.json"))[1])
            assert reply["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
            assert "security" not in reply["paths"]["/health/live"]["get"]
            assert "examples" not in reply["components"]["schemas"]["ChatRequest"]["properties"]["model"]
            await ask(site, "/docs")
            assert (await site.request("GET", "/v1/models"))[0] == 401
            await ask(site, "/v1/models", bearer("alice"))
            status, headers, _ = await site.request(
                "OPTIONS", "/v1/models"
            )  # a browser sends its preflight without one
            assert (status, headers["allow"]) == (204, "get, head, options")

    run(main)


@pytest.mark.parametrize("path", ["/llm/v1/models", "/v1/models", "/llm/health/live", "/%6clm/v1/models?x=1"])
def test_every_path_is_also_served_below_the_prefix(path: str) -> None:
    async def main() -> None:
        async with front("abc", http=replace(HTTP, path_prefix="/llm")) as site:
            await ask(site, path)
            for wrong in ("/llmv1/models", "/llm/llm/v1/models", "/other/v1/models"):
                assert (await site.request("GET", wrong))[0] == 404
            status, headers, _ = await site.request("GET", "/llm", None, BROWSER)
            assert (status, headers["location"]) == (308, "llm/")

    run(main)


@pytest.mark.parametrize("prefix", ["llm", "/llm/", "/", "//a", "/a b", "/v1", "/docs/x", "/a?b"])
def test_what_is_no_prefix_is_refused_by_name_and_value(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"^path_prefix must") as error:
        HttpConfig(path_prefix=prefix)
    assert repr(prefix) in str(error.value)
