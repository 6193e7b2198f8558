"""Measures how long the page of a large cluster is busy with its updates, in Chromium. Each worker changes in each of
them, one a second: the worst case.

    .venv/bin/python -m scripts.ui.measure_updates [--workers 200] [--seconds 20]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.browser.made_up_cluster import made_up_site

PERIOD_S = 1.0
SETTLE_S = 3.0  # until the drawing of what has come into sight is over
TASKS = "disabled-by-default-devtools.timeline"  # the category of their events
OPTIONS = ["--no-sandbox"]  # there is none for root


def measured(site: str, seconds: float) -> dict[str, Any]:
    """By what is in sight: the tasks of the page's thread."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=OPTIONS) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        with traced(browser, page) as first:
            page.goto(f"{site}/ui/#/cluster")
            page.get_by_role("rowheader", name="decode-0").wait_for()
            page.wait_for_timeout(SETTLE_S * 1000)
        found: dict[str, Any] = {"elements": page.evaluate("document.all.length"), "while it is opened": first}
        for sight, at in (("picture", "0"), ("table", "document.body.scrollHeight / 2")):
            page.evaluate(f"scrollTo(0, {at})")
            page.wait_for_timeout(SETTLE_S * 1000)
            with traced(browser, page) as tasks:
                page.wait_for_timeout(seconds * 1000)
            found[f"{sight} in sight"] = tasks | {"cpu_ms_a_second": round(tasks["cpu_ms"] / seconds, 1)}
        return found


@contextmanager
def traced(browser: Browser, page: Page) -> Iterator[dict[str, Any]]:
    """Gives figures that are there in the end."""
    figures: dict[str, Any] = {}
    browser.start_tracing(page=page, categories=[TASKS])
    yield figures
    figures |= figures_of(json.loads(browser.stop_tracing())["traceEvents"])


def figures_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all tasks of the page's thread. They take longer than their CPU time on a busy machine."""
    named = [event for event in events if event["name"] == "thread_name"]
    threads = {(event["pid"], event["tid"]) for event in named if event["args"]["name"] == "CrRendererMain"}
    tasks = [event for event in events if event["name"] == "RunTask" and (event["pid"], event["tid"]) in threads]
    took_ms = [event.get("dur", 0) / 1000 for event in tasks]
    cpu_ms = [event.get("tdur", 0) / 1000 for event in tasks]
    return {
        "longest_task_cpu_ms": round(max(cpu_ms), 1),
        "longest_task_ms": round(max(took_ms), 1),
        "tasks_over_50_ms": sum(one > 50 for one in took_ms),
        "cpu_ms": round(sum(cpu_ms), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="at each place of the page")
    options = parser.parse_args()
    with made_up_site(options.workers, period_s=PERIOD_S) as site:
        print(json.dumps(measured(site.url, options.seconds), indent=2))


if __name__ == "__main__":
    main()
