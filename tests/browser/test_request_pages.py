"""The list of requests in a real browser, behind keys and under a path prefix. Mock workers behind a real router."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import SavePicture
from tests.support.clients.scripted_router import ScriptedModel, ScriptedSite, scripted_router

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.browser.page_opener import OpenPage

KEY = "the-key-of-operations"
CALLERS_KEY = "the-key-of-a-caller"
HEADERS = {"Authorization": f"Bearer {KEY}"}
PREFIX = "/llm"
REFRESH_MS = 2500.0  # and somewhat more


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    folder = tmp_path_factory.mktemp("requests")
    keys = [
        {"name": "operations", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "admin": True},
        {"name": "caller", "sha256": hashlib.sha256(CALLERS_KEY.encode()).hexdigest()},
    ]
    (folder / "keys.yaml").write_text(json.dumps({"keys": keys}))
    settings = {"access": {"keys_file": str(folder / "keys.yaml")}, "http": {"path_prefix": PREFIX}}
    models = [ScriptedModel("writer", [{"match": "a line", "reply": "One line."}])]
    with scripted_router(folder, models, settings=settings, headers=HEADERS) as site:
        for text in ["a line"] * 12 + ["another"]:
            ask(site, text)
        yield site


def ask(site: ScriptedSite, text: str) -> None:
    body = json.dumps({"model": "writer", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Content-Type": "application/json", **HEADERS}
    with urllib.request.urlopen(urllib.request.Request(f"{site.api}/chat/completions", body, headers), timeout=10):
        pass


@pytest.fixture
def open_page(browser: Browser, site: ScriptedSite) -> Iterator[OpenPage]:
    from tests.support.browser.page_opener import page_opener

    with page_opener(browser, site.url, prefix=PREFIX) as open_page:
        yield open_page


def give_key(page: object, key: str = KEY) -> None:
    from playwright.sync_api import Page

    assert isinstance(page, Page)
    page.get_by_role("dialog").get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use it").click()


def test_a_page_asks_for_the_key_and_goes_on(open_page: OpenPage) -> None:
    page = open_page("requests")
    give_key(page)
    page.get_by_role("table").get_by_role("row").nth(3).wait_for()
    assert KEY not in page.url
    page.reload()  # the key is kept for the tab
    page.get_by_role("table").get_by_role("row").nth(3).wait_for()
    page.get_by_role("button", name=re.compile("[Ff]orget")).click()
    page.reload()
    page.get_by_role("dialog").get_by_label("API key").wait_for()


def test_a_wrong_key_is_asked_for_again(open_page: OpenPage) -> None:
    page = open_page("requests")
    page.get_by_role("dialog").get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_role("dialog").get_by_label("API key").and_(page.locator(":focus")).wait_for()
    give_key(page)
    page.get_by_role("table").wait_for()


def test_a_view_of_administrators_says_which_key_it_needs(open_page: OpenPage) -> None:
    page = open_page("cluster")
    give_key(page, CALLERS_KEY)
    page.get_by_role("dialog").get_by_text("/cluster/live needs an API key of an administrator.").wait_for()
    give_key(page)
    page.get_by_role("region", name="Workers").wait_for()


def test_at_the_port_of_administrators_chat_leads_to_the_cluster(open_page: OpenPage) -> None:
    page = open_page("requests")
    page.route("**/v1/models", lambda route: route.fulfill(status=404, json={"error": {"message": "not here"}}))
    page.goto(page.url.replace("#/requests", "?#/chat"))
    page.get_by_text("Models answer at the port of clients").wait_for()
    page.get_by_role("link", name="Go to the cluster").click()
    page.get_by_role("heading", name="Cluster").wait_for()


def test_a_key_that_was_not_given_is_asked_for_by_click_only(open_page: OpenPage) -> None:
    page = open_page("requests")
    page.clock.install()
    page.reload()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("alert").wait_for()
    with page.expect_response(re.compile("/v1/requests")):  # the list is read again
        page.clock.run_for(REFRESH_MS)
    assert page.get_by_role("dialog").count() == 0
    page.get_by_role("button", name="Enter key").click()
    give_key(page)
    page.get_by_role("table").wait_for()


def test_a_request_is_found_by_filters_and_shows_where_its_time_went(open_page: OpenPage, picture: SavePicture) -> None:
    page = open_page("requests")
    give_key(page)
    page.get_by_role("table").wait_for()
    page.get_by_label("Outcome").select_option("length")
    page.get_by_text("There are no such requests").or_(page.get_by_role("table")).wait_for()
    page.get_by_label("Outcome").select_option("stop")
    page.get_by_role("table").wait_for()
    picture(page, "requests")
    page.get_by_role("table").get_by_role("link").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=re.compile("^Request ")).wait_for()
    page.get_by_text("decode", exact=False).first.wait_for()
    picture(page, "request")
    page.get_by_role("link", name="All requests").click()
    assert page.get_by_label("Outcome").input_value() == "stop"  # the filter is in the address


@pytest.mark.parametrize(("models", "kind"), [([], "infer"), ([{"id": "writer"}], "generate")])
def test_the_list_opens_on_the_kind_of_the_models_that_there_are(
    open_page: OpenPage, models: list[dict[str, str]], kind: str
) -> None:
    from playwright.sync_api import expect

    page = open_page("cluster")
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": models}))
    page.goto(page.url.replace("#/cluster", "?#/requests"))
    give_key(page)
    expect(page.get_by_label("Kind")).to_have_value(kind)


def test_requests_have_no_grave_faults_of_accessibility(open_page: OpenPage) -> None:
    from tests.support.browser.accessibility import grave_faults
    from tests.support.browser.built_page import require_axe

    axe = require_axe()
    page = open_page("requests")
    page.get_by_role("dialog").wait_for()
    assert grave_faults(page, axe) == []
    give_key(page)
    page.get_by_role("table").wait_for()
    assert grave_faults(page, axe) == []
    page.get_by_role("table").get_by_role("link").first.click()
    page.get_by_role("heading", name=re.compile("^Request ")).wait_for()
    page.get_by_role("table").first.wait_for()
    assert grave_faults(page, axe) == []
