"""The live view of 200 workers that all change, several times a second."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from slipstream.router.api.ui.live_state import WHOLE, event
from tests.support.browser.made_up_cluster import MadeUpCluster, MadeUpSite, made_up_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    from tests.support.browser.page_opener import OpenPage

NUM_WORKERS = 200
LAST_WORKER = "prefill-49"  # by name
PERIOD_S = 0.25
MAX_ELEMENTS = 20_000
MAX_BUSY_SHARE = 0.6  # of the page's thread, on a machine that does other things, too
NUM_UPDATES = 6
# Tasks of 50 ms and more keep a page from answering its user.
WATCH_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({type: "longtask"});
"""


@pytest.fixture(scope="module")
def site(browser: Browser) -> Iterator[MadeUpSite]:
    with made_up_site(NUM_WORKERS, period_s=PERIOD_S) as site:
        yield site


@pytest.fixture
def open_page(browser: Browser, site: MadeUpSite) -> Iterator[OpenPage]:
    from tests.support.browser.page_opener import page_opener

    with page_opener(browser, site.url) as open_page:
        yield open_page


def num_requests(page: Page, worker: str) -> int:
    """What the row of a worker shows; here it is how often the state had been read."""
    row = page.get_by_role("row", name=re.compile(f"^{worker} "))
    return int(row.get_by_role("cell").nth(2).inner_text())


def test_the_live_view_of_200_changing_workers_stays_fluent(open_page: OpenPage) -> None:
    page = open_page("cluster")
    page.get_by_role("rowheader", name=LAST_WORKER).wait_for()
    page.evaluate(WATCH_TASKS)
    page.wait_for_timeout(NUM_UPDATES * PERIOD_S * 1000)
    assert page.evaluate("document.querySelectorAll('*').length") < MAX_ELEMENTS
    assert sum(page.evaluate("window.longTasks")) < MAX_BUSY_SHARE * NUM_UPDATES * PERIOD_S * 1000


def test_a_row_that_comes_into_sight_shows_what_is(open_page: OpenPage) -> None:
    page = open_page("cluster")
    page.get_by_role("rowheader", name=LAST_WORKER).wait_for()
    first = num_requests(page, LAST_WORKER)
    page.get_by_role("rowheader", name=LAST_WORKER).scroll_into_view_if_needed()
    row = page.get_by_role("row", name=re.compile(f"^{LAST_WORKER} "))
    row.get_by_role("cell", name=re.compile(f"^(?!{first}$)[0-9]+$")).first.wait_for()
    assert num_requests(page, LAST_WORKER) > first


def test_workers_name_their_model_where_there_are_several(open_page: OpenPage) -> None:
    page = open_page("requests")
    for models, has_column in ((("chat", "chat", "chat", "code"), True), (("chat",) * 4, False)):
        entries = MadeUpCluster(4).read()
        workers = [key for key in entries if key.startswith("worker/")]
        for key, model in zip(workers, models, strict=True):
            entries[key] = json.dumps({**json.loads(entries[key]), "model": model}).encode()
        page.unroute_all()
        page.route("**/cluster/live", partial(answer_with, event(WHOLE, entries)))
        page.goto(page.url.split("?")[0].split("#")[0] + f"?{has_column}#/cluster")
        table = page.get_by_role("region", name="Workers")
        table.get_by_role("rowheader", name="decode-1").wait_for()
        assert table.get_by_role("columnheader", name="Model").count() == has_column
        assert table.get_by_role("cell", name="code", exact=True).count() == has_column


def answer_with(events: bytes, route: Route) -> None:
    route.fulfill(content_type="text/event-stream", body=events)


def test_a_lost_connection_is_said_and_made_again(open_page: OpenPage, site: MadeUpSite) -> None:
    page = open_page("cluster")
    status = page.get_by_role("main").get_by_role("status")
    status.get_by_text("Ready", exact=True).wait_for()
    site.stop()
    status.get_by_text(re.compile("Connecting again")).wait_for()
    assert page.get_by_role("rowheader", name="decode-0").count() == 1  # what was known stays
    lost = site.cluster.num_readings
    site.start()
    status.get_by_text("Ready", exact=True).wait_for()
    assert site.cluster.num_readings > lost
