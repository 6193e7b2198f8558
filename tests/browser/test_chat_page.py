"""The chat in a real browser. Mock workers behind a real router say what the tests want."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from tests.browser.conftest import SavePicture
from tests.support.browser.hostile_texts import FORBIDDEN, HOSTILE_TEXTS
from tests.support.browser.watched_host import WatchedHost, watched_host
from tests.support.clients.agent_models import make_thinking_model
from tests.support.clients.scripted_router import ScriptedModel, ScriptedSite, scripted_router

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from tests.support.browser.page_opener import OpenPage

POEM = "One line.\n\n```python\ndef double(x):\n    return 2 * x\n```\n\n| n | double |\n|---|---|\n| 4 | 8 |\n"
WEATHER = [
    {
        "match": r"weather in (?P<city>\w+)",
        "reply": "<think>\nI have to look it up.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "\\g<city>"}}\n</tool_call>',
    },
    {"match": "(?P<weather>sunny|rainy)", "reply": "<think>\nNow I know.\n</think>\n\nIt is \\g<weather> there."},
]
TOOL = '{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}'
LONG = " ".join(f"word{number}" for number in range(400))
SHORT = " ".join(f"word{number}" for number in range(12))


@pytest.fixture(scope="module")
def other_host() -> Iterator[WatchedHost]:
    with watched_host() as host:
        yield host


@pytest.fixture(scope="module")
def site(browser: Browser, other_host: WatchedHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    rules = [
        {"match": f"be hostile with {name}", "reply": text.replace("HOST", other_host.address)}
        for name, text in HOSTILE_TEXTS.items()
    ]
    rules += [{"match": "write a poem", "reply": POEM}, {"match": "go on and on", "reply": LONG}]
    folder = tmp_path_factory.mktemp("chat")
    models = [
        ScriptedModel("thinker", [*rules, *WEATHER], make_thinking_model(folder / "thinker"), step_s=0.0005),
        ScriptedModel("writer", rules, step_s=0.0005),
        ScriptedModel("slow", [{"match": "not for long", "reply": SHORT}, {"match": "on", "reply": LONG}], step_s=0.05),
    ]
    with closing(SocketHolder()) as holder, scripted_router(folder, models, holder=holder.path) as site:
        yield site


@pytest.fixture
def open_page(browser: Browser, site: ScriptedSite) -> Iterator[OpenPage]:
    from tests.support.browser.page_opener import page_opener

    with page_opener(browser, site.url) as open_page:
        yield open_page


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def chosen_models(page: Page) -> Locator:
    return page.get_by_role("main").get_by_role("combobox")


def chat_with(open_page: OpenPage, model: str, scheme: str = "light") -> Page:
    page = open_page(f"chat/{model}", scheme)
    chosen_models(page).first.select_option(model)
    return page


def answer_by(page: Page, model: str) -> Locator:
    """The latest answer of a model, once it has ended."""
    answer = page.get_by_role("article", name=model).last
    answer.get_by_role("button", name="Regenerate").wait_for()
    return answer


def test_an_answer_is_streamed_and_shown_as_markdown(open_page: OpenPage) -> None:
    page = chat_with(open_page, "writer")
    say(page, "write a poem")
    answer = answer_by(page, "writer")
    assert answer.get_by_role("cell", name="8").count() == 1
    assert "return 2 * x" in answer.locator("pre").inner_text()
    assert re.search(r"TTFT [\d.]+ .*tokens", answer.inner_text(), re.DOTALL)


def test_a_running_answer_grows_and_is_stopped(open_page: OpenPage) -> None:
    page = chat_with(open_page, "slow")
    say(page, "go on and on")
    answer = page.get_by_role("article", name="slow")
    answer.get_by_text("word2").wait_for()
    page.get_by_role("button", name="Stop").click()
    assert "stopped" in answer_by(page, "slow").inner_text()
    assert "word399" not in answer.inner_text()


def test_an_answer_that_is_being_written_survives_a_reload_as_far_as_it_was(open_page: OpenPage) -> None:
    page = chat_with(open_page, "slow")
    say(page, "go on and on")
    page.get_by_role("article", name="slow").get_by_text("word9").wait_for()
    page.reload()
    answer = answer_by(page, "slow")
    assert "word9" in answer.inner_text()
    assert answer.get_by_text("stopped").count() == 1


def test_an_answer_goes_on_where_it_was_when_the_router_is_killed(open_page: OpenPage, site: ScriptedSite) -> None:
    page = chat_with(open_page, "slow")
    say(page, "go on, but not for long")
    answer = page.get_by_role("article", name="slow")
    answer.get_by_text("word1").wait_for()
    site.exchange_router(lambda: answer.get_by_text(SHORT).is_hidden() or pytest.fail("it had ended"))
    assert SHORT in " ".join(answer_by(page, "slow").inner_text().split())


def test_reasoning_is_folded_and_a_call_is_continued_with_its_result(open_page: OpenPage) -> None:
    page = chat_with(open_page, "thinker")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Tools").fill(TOOL)
    say(page, "What is the weather in Lima?")
    answer = answer_by(page, "thinker")
    assert answer.get_by_text("I have to look it up.").is_hidden()
    answer.get_by_text("Reasoning").click()
    assert answer.get_by_text("I have to look it up.").is_visible()
    assert '"city": "Lima"' in answer.locator("pre").inner_text()
    answer.get_by_label("Result of get_weather").fill("sunny")
    page.get_by_role("textbox", name="Message").press("Enter")  # nothing but the result
    page.get_by_text("It is sunny there.").wait_for()


def test_a_conversation_is_exported_and_begun_anew(open_page: OpenPage) -> None:
    page = chat_with(open_page, "writer")
    say(page, "write a poem")
    answer_by(page, "writer")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    conversation = json.loads(download.value.path().read_text())
    assert [turn["text"] for turn in conversation["turns"]] == ["write a poem"]
    assert conversation["turns"][0]["answers"][0]["content"] == POEM
    page.get_by_role("button", name="New").click()
    page.get_by_role("button", name="Begin anew").click()
    page.get_by_text("Ask something").wait_for()


def test_several_models_answer_side_by_side(open_page: OpenPage, picture: SavePicture) -> None:
    page = chat_with(open_page, "writer")
    page.get_by_role("button", name="Add a model").click()
    chosen_models(page).nth(1).select_option("thinker")
    say(page, "write a poem")
    left, right = (answer_by(page, name).bounding_box() or {} for name in ("writer", "thinker"))
    assert left["y"] == right["y"]
    assert left["x"] < right["x"]
    picture(page, "chat_side_by_side")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_why_there_shows_the_stages_of_that_very_answer(open_page: OpenPage, picture: SavePicture, scheme: str) -> None:
    page = chat_with(open_page, "writer", scheme)
    say(page, "write a poem")
    answer = answer_by(page, "writer")
    answer.get_by_role("button", name="Why there?").click()
    stages = answer.get_by_role("region", name="Why there").get_by_role("table").first
    stages.get_by_text("decode").first.wait_for()
    assert "prefill" in stages.inner_text()
    page.evaluate("scrollTo(0, 0)")
    picture(page, "chat" if scheme == "light" else "chat_dark")


def test_hostile_answers_stay_harmless(browser: Browser, site: ScriptedSite, other_host: WatchedHost) -> None:
    from tests.support.browser.page_watch import watched_page

    with watched_page(browser, site.url) as (page, watch):
        page.goto(f"{site.url}/ui/#/chat/writer")
        chosen_models(page).first.select_option("writer")
        page.evaluate("window.pwned = (how) => (window.harm = [...(window.harm ?? []), how]), 0")
        for name in HOSTILE_TEXTS:
            say(page, f"be hostile with {name}")
            answer = answer_by(page, "writer")
            assert answer.locator(FORBIDDEN).count() == 0, name
            assert answer.locator("[style]").count() == 0, name
            for link in answer.locator("a[href]").all():
                assert re.match("https?:", link.get_attribute("href") or ""), name
                link.hover()
        assert page.evaluate("window.harm ?? []") == []
        assert other_host.asked == []
        assert page.url.startswith(f"{site.url}/ui/")
        watch.assert_harmless(page)


def test_a_chat_has_no_grave_faults_of_accessibility(open_page: OpenPage) -> None:
    from tests.support.browser.accessibility import grave_faults
    from tests.support.browser.built_page import require_axe

    axe = require_axe()
    page = chat_with(open_page, "writer")
    say(page, "write a poem")
    answer_by(page, "writer")
    assert grave_faults(page, axe) == []


def test_a_chat_is_had_by_keyboard_alone(open_page: OpenPage) -> None:
    from tests.support.browser.keyboard import tab_to

    page = chat_with(open_page, "writer")
    page.reload()
    page.get_by_role("textbox", name="Message").wait_for()
    tab_to(page, "Message")
    page.keyboard.type("write a poem")
    page.keyboard.press("Enter")
    answer_by(page, "writer")
    tab_to(page, "Why there?")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Why there").get_by_role("table").first.wait_for()
