"""Measures how long the page of a large cluster is busy with its updates, in Chromium. Each worker changes in each of
them, one a second: the worst case.

    .venv/bin/python scripts/ui/measure_updates.py [--workers 200] [--seconds 20]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from slipstream.router.api.ui.built_page import ASSETS
from slipstream.router.api.ui.live_state import CHANGES, WHOLE, event

PERIOD_S = 1.0
SETTLE_S = 3.0  # until the drawing of what has come into sight is over
STATES = ("active", "reserved", "held", "cached")
NUM_PAGES = 4000
TASKS = "disabled-by-default-devtools.timeline"  # the category of their events
OPTIONS = ["--no-sandbox"]  # there is none for root


class MadeUpCluster:
    """Entries as `GET /cluster/live` sends them, other ones at each reading."""

    def __init__(self, num_workers: int) -> None:
        num_prefill = num_workers // 4
        self._names = [("prefill", number) for number in range(num_prefill)]
        self._names += [("decode", number) for number in range(num_workers - num_prefill)]
        self._random = random.Random(0)
        self._output_tokens = 0

    def read(self) -> dict[str, bytes]:
        entries: dict[str, Any] = {
            "router": {"slipstream": "0", "ready": True, "unready_because": None, "calls_admin": True},
            "model/many": self._model(),
            "transfers": {"span_s": 10.0, "pairs": self._pairs()},
        }
        for role, number in self._names:
            entries[f"worker/{role}-{number}"] = self._worker(role, f"{role}-{number}")
        return {key: json.dumps(entry).encode() for key, entry in entries.items()}

    def _pairs(self) -> list[list[Any]]:
        sides = [[f"{role}-{number}" for role, number in self._names if role == side] for side in ("prefill", "decode")]
        return [[*map(self._random.choice, sides), 3, self._random.randrange(1 << 24)] for _ in range(300)]

    def _model(self) -> dict[str, Any]:
        self._output_tokens += self._random.randrange(50_000, 60_000)
        return {
            "name": "many",
            "ready": True,
            "unready_because": None,
            "num_waiting": self._random.randrange(20),
            "num_running": self._random.randrange(2000, 2100),
            "phases": {"prefill": self._random.randrange(200), "decode": self._random.randrange(2000)},
            "queue_depth": {"0": self._random.randrange(20)},
            "oldest_wait_s": self._random.random(),
            "tenants": {f"tenant {number}": self._random.randrange(100) for number in range(20)},
            "slo": {"ttft_s": 1.0, "itl_s": 0.05},
            "window": {
                "span_s": 10.0,
                "requests_per_s": self._random.uniform(180, 200),
                "num_refused": 0,
                "num_failed": 0,
                "ttft_p50_s": self._random.uniform(0.2, 0.3),
                "ttft_p99_s": self._random.uniform(0.5, 0.9),
                "itl_p50_s": self._random.uniform(0.02, 0.03),
                "itl_p99_s": self._random.uniform(0.03, 0.05),
                "queue_p99_s": 0.1,
                "cached_share": self._random.random(),
                "attainment": self._random.uniform(0.9, 1),
                "ttft_attainment": 1.0,
                "itl_attainment": 1.0,
            },
            "versions": [{"name": "", "weight": None, "is_live": True, "is_mirror": False}],
            "totals": {
                "prompt_tokens": 0,
                "output_tokens": self._output_tokens,
                "transfer_bytes": self._output_tokens * 1000,
                "transfers": 0,
                "retries": 0,
            },
        }

    def _worker(self, role: str, name: str) -> dict[str, Any]:
        pages = {state: self._random.randrange(NUM_PAGES // 5) for state in STATES}
        return {
            "name": name,
            "model": "many",
            "role": role,
            "version": "",
            "tp": 1,
            "is_draining": False,
            "num_requests": self._random.randrange(100),
            "max_slots": 128,
            "free_slots": self._random.randrange(128),
            "num_pages": NUM_PAGES,
            "free_pages": NUM_PAGES - sum(pages.values()),
            "free_tokens": 0,
            "num_running": 10,
            "num_waiting": self._random.randrange(10),
            "pages": pages,
        }


class PageAndFeed(SimpleHTTPRequestHandler):
    """The built page, and the event stream that it follows."""

    protocol_version = "HTTP/1.1"

    def __init__(self, cluster: MadeUpCluster, *arguments: Any) -> None:
        self._cluster = cluster
        super().__init__(*arguments, directory=str(ASSETS.parent))

    def do_GET(self) -> None:
        if self.path.startswith("/ui/"):
            self.path = self.path.replace("/ui/", f"/{ASSETS.name}/", 1)
            super().do_GET()
        elif self.path == "/cluster/live":
            self._stream()
        else:
            self._respond(200, "application/json", b'{"data": []}')

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self.wfile.write(event(WHOLE, self._cluster.read()))
            while True:
                time.sleep(PERIOD_S)
                self.wfile.write(event(CHANGES, self._cluster.read(), []))
        except OSError:
            pass  # the page has been closed

    def _respond(self, status: int, content_type: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served(cluster: MadeUpCluster) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(PageAndFeed, cluster))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def measured(site: str, seconds: float) -> dict[str, Any]:
    """By what is in sight: the tasks of the page's thread."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=OPTIONS) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        with traced(browser, page) as first:
            page.goto(f"{site}/ui/index.html#/cluster")
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
    with served(MadeUpCluster(options.workers)) as site:
        print(json.dumps(measured(site, options.seconds), indent=2))


if __name__ == "__main__":
    main()
