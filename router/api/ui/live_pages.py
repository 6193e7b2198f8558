"""The state of the cluster as it changes: `GET /cluster/live`, an event stream.

The event `whole` has all entries and `changes` what is new since the one before. A reader that does not keep up misses
readings, and then gets the whole again.
"""

from __future__ import annotations

import time

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.ui.live_entries import LiveEntries
from slipstream.router.api.ui.live_feed import PERIOD_S, LiveFeed, ReadEntries
from slipstream.router.http.reader import Request

LIVE_PATH = "/cluster/live"
ENTRIES_PATH = "/cluster/live/entries"
EVENT_STREAM = "text/event-stream; charset=utf-8"
HEADERS = (("cache-control", "no-store"), ("x-accel-buffering", "no"))
RETRY = b"retry: 2000\n\n"  # milliseconds until a reader asks again
QUIET = b": quiet\n\n"
QUIET_S = 10.0  # after which a stream without news gets a comment, so that both ends notice a broken connection


class LivePages:
    """`entries` are those of this process's own cluster."""

    def __init__(self, entries: LiveEntries) -> None:
        self._entries = entries
        self.stream = LiveStream(self._read)

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the pages."""
        routes.add("GET", LIVE_PATH, self.stream.serve)
        routes.add("GET", ENTRIES_PATH, self.entries)

    async def entries(self, request: Request, exchange: ApiExchange) -> None:
        """The entries of the event stream, once."""
        exchange.respond(200, as_json(self._entries.read()), headers=HEADERS)

    async def _read(self) -> dict[str, bytes]:
        return {key: as_json(entry) for key, entry in self._entries.read().items()}


class LiveStream:
    """Serves the event stream from one feed. The first reading may raise HttpError, which is then the answer."""

    def __init__(self, read: ReadEntries, period_s: float = PERIOD_S) -> None:
        self.feed = LiveFeed(read, period_s)

    async def serve(self, request: Request, exchange: ApiExchange) -> None:
        """The state of the cluster, and what changes, as an event stream. It ends when the server does."""
        if request.method == "HEAD":
            exchange.respond(200, b"", EVENT_STREAM, HEADERS)
            return
        async with self.feed.followed():
            exchange.start(200, EVENT_STREAM, HEADERS)
            exchange.write(RETRY)
            seen, sent_s = 0, time.monotonic()
            while True:
                if not exchange.congested:
                    news = self.feed.state.event_after(seen)
                    seen = self.feed.state.number
                    now_s = time.monotonic()
                    if news or now_s - sent_s >= QUIET_S:
                        exchange.write(news or QUIET)
                        sent_s = now_s
                if exchange.is_ending:
                    break
                await self.feed.next_reading()
        exchange.finish()


def as_json(entry: object) -> bytes:
    return orjson.dumps(entry, option=orjson.OPT_NON_STR_KEYS)
