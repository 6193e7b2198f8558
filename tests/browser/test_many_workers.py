"""The live view of 200 workers, which are mock workers in one process behind a real router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.clients.scripted_router import ScriptedModel, ScriptedSite, scripted_router

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NUM_WORKERS = 200
MAX_ELEMENTS = 20_000
MAX_BUSY_SHARE = 0.6  # of the page's thread, on a machine that does other things, too
SPAN_MS = 3000.0
# Tasks of 50 ms and more keep a page from answering its user.
WATCH_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({type: "longtask"});
"""


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSite]:
    model = ScriptedModel("many", [], workers_each=NUM_WORKERS)
    with scripted_router(tmp_path_factory.mktemp("many"), [model]) as site:
        yield site


def test_the_live_view_of_200_workers_stays_fluent(browser: Browser, site: ScriptedSite) -> None:
    from tests.support.browser.page_watch import watched_page

    with watched_page(browser, site.url) as (page, watch):
        page.goto(f"{site.url}/ui/#/cluster")
        page.get_by_role("rowheader", name=f"many-0-decode-{NUM_WORKERS - 1}").wait_for()
        page.evaluate(WATCH_TASKS)
        page.wait_for_timeout(SPAN_MS)  # several updates
        assert page.evaluate("document.querySelectorAll('*').length") < MAX_ELEMENTS
        assert sum(page.evaluate("window.longTasks")) < MAX_BUSY_SHARE * SPAN_MS
        watch.assert_clean(page)
