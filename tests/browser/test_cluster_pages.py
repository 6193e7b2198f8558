"""The page of a cluster with prefill and decode workers and a repository, in a real browser: the live view, changes by
click, the latest requests, and the playground."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import SavePicture
from tests.support.browser.hostile_texts import HOSTILE_TEXTS
from tests.support.browser.watched_host import watched_host
from tests.support.e2e.serving_cluster import ROOT, ServingCluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.support.browser.page_opener import OpenPage

TOKEN = "the-administrators-token"
STEPS = ("encoder", "retriever", "prompt", "demo_llm")
MODELS = ("add_sub", "counter", "accumulator", "rag", *STEPS)
PLACES = [  # each with a text that is there once all is
    ("cluster", "Model repository"),
    ("requests", "Outcome"),
    ("playground/rag", "Configuration"),
    ("playground/add_sub", "Configuration"),
]
CHANGE_MS = 60_000.0  # for a worker to come, on a machine that does other things, too


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "token").write_text(TOKEN)
    settings: dict[str, Any] = {
        "name": "browser",
        "repository": {
            "paths": [str(ROOT / "configs/repository")],
            "control_mode": "explicit",
            "load_models": list(MODELS),
            "grpc": {"port": None},
            "metrics": {"port": None},
        },
        "engine": {"kv_cache_mib": 64, "num_threads": 1},
        "admin_api": {"token_file": str(folder / "token")},
    }
    with ServingCluster(folder / "site", settings) as cluster:
        yield cluster


@pytest.fixture
def open_page(browser: Browser, cluster: ServingCluster) -> Iterator[OpenPage]:
    from tests.support.browser.page_opener import page_opener

    with page_opener(browser, cluster.base_url) as open_page:
        yield open_page


def answer_of(page: Page) -> str:
    """What the section of the answer says once the request has ended."""
    answer = page.get_by_role("region", name="Answer")
    answer.get_by_text(re.compile("^took ")).wait_for()
    return answer.inner_text()


def test_a_pool_is_scaled_by_click_and_the_view_follows(open_page: OpenPage, picture: SavePicture) -> None:
    page = open_page("cluster")
    workers = page.get_by_role("region", name="Workers")
    workers.get_by_role("rowheader", name="decode-0").wait_for()
    page.get_by_role("button", name="Scale").first.click()
    page.get_by_label("decode workers").fill("2")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_label("Administrator's token").fill(TOKEN)
    page.get_by_role("button", name="Use it").click()
    workers.get_by_role("rowheader", name="decode-1").wait_for(timeout=CHANGE_MS)
    page.evaluate("scrollTo(0, 0)")
    picture(page, "cluster")
    assert TOKEN not in page.url


def test_models_are_listed_with_their_states_and_reasons(open_page: OpenPage) -> None:
    page = open_page("playground")
    models = page.get_by_role("navigation", name="Models of the repository")
    models.get_by_role("link", name=re.compile("^add_sub 1 ready")).wait_for()
    models.get_by_role("link", name=re.compile("^norm .*not loaded")).wait_for()


def test_a_tensor_model_is_asked_by_a_form_made_from_its_metadata(open_page: OpenPage) -> None:
    page = open_page("playground/add_sub")
    page.get_by_label("Value of INPUT0").fill("[1, 2, 3]")
    page.get_by_label("Value of INPUT1").fill("10 20 30")
    page.get_by_role("button", name="Send").click()
    answer = answer_of(page)
    total = page.get_by_role("region", name="Output SUM")
    assert total.get_by_role("row").nth(1).inner_text().split() == ["0", "11", "22", "33"]
    assert re.search(r"curl -s http://\S+/v2/models/add_sub/infer -d '\{\"inputs\"", answer)


def test_binary_tensors_give_the_same_answer(open_page: OpenPage) -> None:
    page = open_page("playground/add_sub")
    page.get_by_label("Value of INPUT0").fill("0.5 2")
    page.get_by_label("Value of INPUT1").fill("1 1")
    page.get_by_text("Scheduling and encoding").click()
    page.get_by_label("binary tensors").check()
    page.get_by_role("button", name="Send").click()
    assert "base64 -d" in answer_of(page)
    difference = page.get_by_role("region", name="Output DIFFERENCE")
    assert difference.get_by_role("row").nth(1).inner_text().split() == ["0", "-0.5", "1"]


def test_values_that_do_not_fit_are_refused_before_they_are_sent(open_page: OpenPage) -> None:
    page = open_page("playground/add_sub")
    page.get_by_label("Value of INPUT0").fill("one")
    page.get_by_role("button", name="Send").click()
    assert page.get_by_role("alert").inner_text() == "INPUT0: 'one' is not a value of FP32."


def test_a_sequence_is_continued_by_its_id(open_page: OpenPage) -> None:
    page = open_page("playground/accumulator")
    page.get_by_label("Sequence").fill("browser")
    page.get_by_label("Value of VALUE").fill("3")
    page.get_by_label("starts").check()
    page.get_by_role("button", name="Send").click()
    answer_of(page)
    page.get_by_label("starts").uncheck()
    page.get_by_label("Value of VALUE").fill("4")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("region", name="Output TOTAL").get_by_role("cell", name="7", exact=True).wait_for()


def test_responses_of_a_decoupled_model_come_one_by_one(open_page: OpenPage) -> None:
    page = open_page("playground/counter")
    page.get_by_label("Value of COUNT").fill("3")
    page.get_by_label("DELAY_MS").check()
    page.get_by_label("Value of DELAY_MS").fill("200")
    page.get_by_role("button", name="Send").click()
    times = re.search(r"took ([\d.]+) ms\s+first response after ([\d.]+) ms\s+3 responses", answer_of(page))
    assert times is not None
    assert float(times[1]) - float(times[2]) > 300  # two pauses of the model
    assert page.get_by_role("region", name="Output VALUE").get_by_role("row").nth(1).inner_text().split() == list(
        "0012"
    )


def test_an_ensemble_is_drawn_and_shows_the_times_of_its_steps(open_page: OpenPage, picture: SavePicture) -> None:
    page = open_page("playground/rag")
    for number, name in enumerate(STEPS, start=1):
        page.get_by_role("link", name=f"Step {number}: {name}").wait_for()
    page.get_by_label("Value of query").fill("Write a function that adds up numbers.")
    page.get_by_role("button", name="Send").click()
    answer_of(page)
    page.get_by_role("link", name=re.compile(r"^Step 4: demo_llm, [\d.]+ m?s$")).wait_for()
    assert page.get_by_role("region", name="Output response").locator("pre").inner_text().strip()
    rows = page.get_by_role("table", name="Steps, with the times of the last request").get_by_role("row")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == [
        "Step",
        *(f"{number}. {name}" for number, name in enumerate(STEPS, start=1)),
    ]
    page.evaluate("scrollTo(0, 0)")
    picture(page, "playground")
    page.get_by_role("link", name=re.compile("^Step 1: encoder")).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="encoder").wait_for()


def test_hostile_output_stays_text(open_page: OpenPage) -> None:
    with watched_host() as host:
        page = open_page("playground/echo")
        page.get_by_role("button", name="Load").click()
        page.get_by_label("Value of text_input").wait_for()
        page.evaluate("window.pwned = (how) => (window.harm = [...(window.harm ?? []), how]), 0")
        for text in HOSTILE_TEXTS.values():
            hostile = text.replace("HOST", host.address)
            page.get_by_label("Value of text_input").fill(hostile)
            page.get_by_role("button", name="Send").click()
            answer_of(page)
            assert page.get_by_role("region", name="Output text_output").locator("pre").inner_text() == hostile
        assert page.evaluate("window.harm ?? []") == []
        assert host.asked == []


def test_models_are_loaded_and_unloaded_by_click(open_page: OpenPage) -> None:
    page = open_page("playground/norm")
    page.get_by_role("button", name="Load").click()
    page.get_by_role("button", name="Send").click()
    answer_of(page)
    page.get_by_role("button", name="Unload").click()
    page.get_by_role("button", name="Load", exact=True).wait_for()
    page.get_by_text("Version 1: unloaded").wait_for()


def test_no_view_is_wider_than_a_phone(open_page: OpenPage) -> None:
    page = open_page("chat")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("textbox", name="Message").wait_for()
    for place, text in [("chat", "Settings"), *PLACES]:
        page.evaluate("place => location.hash = `#/${place}`", place)
        page.get_by_text(text, exact=True).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390, place


@pytest.mark.parametrize(("place", "text"), PLACES)
def test_pages_have_no_grave_faults_of_accessibility(open_page: OpenPage, place: str, text: str) -> None:
    from tests.support.browser.accessibility import grave_faults
    from tests.support.browser.built_page import require_axe

    axe = require_axe()
    page = open_page(place)
    page.get_by_text(text, exact=True).first.wait_for()
    assert grave_faults(page, axe) == []


def test_changes_are_begun_and_given_up_by_keyboard_alone(open_page: OpenPage) -> None:
    from tests.support.browser.keyboard import focused, tab_to

    page = open_page("cluster")
    page.get_by_role("rowheader", name="decode-0").wait_for()
    dialog = page.get_by_role("dialog")
    for button, first in (("Scale", "prefill workers"), ("Drain decode-0", "Cancel")):
        tab_to(page, button)
        page.keyboard.press("Enter")
        dialog.wait_for()
        assert focused(page) == first
        for _ in range(6):  # more than the dialog has
            page.keyboard.press("Tab")
            assert focused(page) == "" or dialog.locator(":focus").count() == 1
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert focused(page) == button


def test_the_playground_is_used_by_keyboard_alone(open_page: OpenPage) -> None:
    from tests.support.browser.keyboard import tab_to

    page = open_page("playground/add_sub")
    page.get_by_label("Value of INPUT0").wait_for()
    tab_to(page, "Value of INPUT0")
    page.keyboard.press("Control+A")
    page.keyboard.type("[1, 2, 3, 4]")
    tab_to(page, "Send")
    page.keyboard.press("Enter")
    answer_of(page)
