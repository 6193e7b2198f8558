"""A cluster of any size that changes as often as a test wants: the files of the page, and the stream that it reads."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from slipstream.router.api.ui.built_page import ASSETS
from slipstream.router.api.ui.live_state import CHANGES, WHOLE, event

STATES = ("active", "reserved", "held", "cached")
NUM_PAGES = 4000


class MadeUpCluster:
    """Entries as `GET /cluster/live` sends them, other ones at each reading."""

    def __init__(self, num_workers: int) -> None:
        num_prefill = num_workers // 4
        self._names = [("prefill", number) for number in range(num_prefill)]
        self._names += [("decode", number) for number in range(num_workers - num_prefill)]
        self._random = random.Random(0)
        self._output_tokens = 0
        self.num_readings = 0

    def read(self) -> dict[str, bytes]:
        entries: dict[str, Any] = {
            "router": {"slipstream": "0", "ready": True, "unready_because": None, "calls_admin": True},
            "model/many": self._model(),
            "transfers": {"span_s": 10.0, "pairs": self._pairs()},
        }
        for role, number in self._names:
            entries[f"worker/{role}-{number}"] = self._worker(role, f"{role}-{number}")
        self.num_readings += 1
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
            "num_requests": self.num_readings,
            "max_slots": 128,
            "free_slots": self._random.randrange(128),
            "num_pages": NUM_PAGES,
            "free_pages": NUM_PAGES - sum(pages.values()),
            "free_tokens": 0,
            "num_running": 10,
            "num_waiting": self._random.randrange(10),
            "pages": pages,
        }


class MadeUpSite:
    """Serves the page of a cluster, until it is stopped; it can be started again at the same port."""

    def __init__(self, cluster: MadeUpCluster, period_s: float) -> None:
        self.cluster = cluster
        self.period_s = period_s
        self.is_stopped = Event()
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self.is_stopped.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), partial(PageAndFeed, self))
        self._port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Ends the streams, and refuses connections from then on."""
        self.is_stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class PageAndFeed(SimpleHTTPRequestHandler):
    def __init__(self, site: MadeUpSite, *arguments: Any) -> None:
        self._site = site
        super().__init__(*arguments, directory=str(ASSETS))

    def do_GET(self) -> None:
        if self.path.startswith("/ui/"):
            self.path = self.path.removeprefix("/ui")
            super().do_GET()
        elif self.path == "/cluster/live":
            self._stream()
        else:
            self._respond(b'{"data": []}')

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        cluster, site = self._site.cluster, self._site
        try:
            self.wfile.write(event(WHOLE, cluster.read()))
            while not site.is_stopped.wait(site.period_s):
                self.wfile.write(event(CHANGES, cluster.read(), []))
        except OSError:
            pass  # the page has been closed

    def _respond(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def made_up_site(num_workers: int, *, period_s: float) -> Iterator[MadeUpSite]:
    site = MadeUpSite(MadeUpCluster(num_workers), period_s)
    try:
        yield site
    finally:
        site.stop()
