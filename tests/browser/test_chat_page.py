"""The chat and the list of requests in a real browser. Mock workers behind a real router say what the tests want."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import SavePicture
from tests.support.browser.hostile_texts import FORBIDDEN, HOSTILE_TEXTS
from tests.support.browser.watched_host import WatchedHost, watched_host
from tests.support.clients.scripted_router import ScriptedModel, ScriptedSite, scripted_router

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from tests.support.browser.page_watch import PageWatch

POEM = "One line.\n\n```python\ndef double(x):\n    return 2 * x\n```\n\n| n | double |\n|---|---|\n| 4 | 8 |\n"
LONG = " ".join(f"word{number}" for number in range(400))
OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def other_host() -> Iterator[WatchedHost]:
    with watched_host() as host:
        yield host


@pytest.fixture(scope="module")
def site(
    browser: Browser, other_host: WatchedHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptedSite]:
    rules = [
        {"match": f"be hostile with {name}", "reply": text.replace("HOST", other_host.address)}
        for name, text in HOSTILE_TEXTS.items()
    ]
    rules += [{"match": "write a poem", "reply": POEM}, {"match": "go on and on", "reply": LONG}]
    models = [
        ScriptedModel("writer", rules, step_s=0.002),
        ScriptedModel("slow", [{"match": "on", "reply": LONG}], step_s=0.05),
    ]
    with scripted_router(tmp_path_factory.mktemp("chat"), models) as site:
        yield site


@pytest.fixture
def open_page(browser: Browser, site: ScriptedSite) -> Iterator[OpenPage]:
    from tests.support.browser.page_watch import watched_page

    with ExitStack() as stack:
        opened: list[tuple[Page, PageWatch]] = []

        def open_page(place: str, scheme: str = "light") -> Page:
            page, watch = stack.enter_context(watched_page(browser, site.url, scheme=scheme))
            opened.append((page, watch))
            page.goto(f"{site.url}/ui/#/{place}")
            return page

        yield open_page
        for page, watch in opened:
            watch.assert_clean(page)


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()


def choose(page: Page, model: str) -> None:
    page.get_by_label("Model", exact=True).first.select_option(model)


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name=re.compile("^Answer"))


def test_an_answer_is_streamed_and_shown_as_markdown(open_page: OpenPage, picture: SavePicture) -> None:
    page = open_page("chat")
    choose(page, "writer")
    say(page, "write a poem")
    answer = answers(page).first
    answer.get_by_text("return 2 * x").wait_for()
    answer.get_by_role("cell", name="8").wait_for()
    answer.get_by_text(re.compile("TTFT")).wait_for()
