"""Answers lines of batches without a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import orjson

from slipstream.router.api.openai.batches.line_answer import LineAnswer


class FakeLines:
    """A `LineServer` that answers with what the line says. The body of a line may ask for `status`, for `refusals`
    before it is answered, and to `wait` until `go` is set."""

    def __init__(self, on_line: Callable[[], None] = lambda: None) -> None:
        self.go = asyncio.Event()
        self.num_served: Counter[str] = Counter()
        self.num_cancelled = 0
        self.num_running = 0
        self.most_running = 0
        self._on_line = on_line

    async def serve(self, key_digest: str, url: str, body: bytes) -> LineAnswer:
        fields = orjson.loads(body)
        name = fields["name"]
        self._on_line()
        self.num_served[name] += 1
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            if fields.get("wait"):
                await self.go.wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1
        if self.num_served[name] <= fields.get("refusals", 0):
            return LineAnswer(429, b'{"error":{}}', "r", 0.01)
        status = fields.get("status", 200)
        return LineAnswer(status, orjson.dumps({"said": name, "url": url, "key": key_digest}), "r")
