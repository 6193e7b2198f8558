"""The events of a response in the background: those that there are, and those to come, whichever process makes
them."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple
from urllib.parse import parse_qsl

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.answer.answer import EVENT_STREAM, STREAM_HEADERS
from slipstream.router.api.generation.answer.pings import Pings
from slipstream.router.api.openai.responses.background_store import BackgroundStore
from slipstream.router.api.openai.responses.response_store import stored_response
from slipstream.router.api.openai.responses.run_files import END_OF_EVENT, read_events
from slipstream.router.api.openai.schema.shown import shown
from slipstream.router.http.http_error import HttpError

REPLAY_FIELDS = ("stream", "starting_after", "include", "include_obfuscation")
LOOK_EVERY_S = 0.02  # for events
ASK_EVERY_S = 0.5  # whether the response has ended without a last event
LAST_EVENTS = tuple(f"event: response.{end}\n".encode() for end in ("completed", "incomplete", "failed"))


class ReplayQuery(NamedTuple):
    """What a GET of a response asks for: its events behind the one with the number `starting_after`."""

    stream: bool = False
    starting_after: int = -1

    @classmethod
    def of(cls, query: str) -> ReplayQuery:
        """Raises HttpError 400."""
        fields = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
        stream, after = fields.get("stream", "false").lower(), fields.get("starting_after", "")
        if stream not in ("true", "false"):
            message = f"Invalid value for 'stream': it must be true or false, got {shown(stream)}."
            raise HttpError(400, message, param="stream", code="invalid_value")
        if after and not (after.isascii() and after.isdigit() and len(after) < 16):
            message = f"Invalid value for 'starting_after': it must be a sequence number, got {shown(after)}."
            raise HttpError(400, message, param="starting_after", code="invalid_value")
        if after and stream == "false":
            message = "'starting_after' is only allowed with 'stream=true'."
            raise HttpError(400, message, param="starting_after", code="invalid_value")
        return cls(stream == "true", int(after) if after else -1)


class EventReplay:
    """To one client. Life cycle: `send`."""

    def __init__(self, store: BackgroundStore, exchange: ApiExchange, response_id: str, owner: str, after: int) -> None:
        self._store = store
        self._exchange = exchange
        self._id = response_id
        self._owner = owner
        self._after = after
        self._num_events = 0  # that were read
        self._offset = 0  # of the file
        self._rest = b""  # of an event that is not whole yet
        self._has_last = False

    async def send(self, ping_s: float | None) -> None:
        """Until the response has ended. A client that is cut off asks again for what follows: its stream does not go on
        at the next router. Raises StoreError before anything was sent."""
        exchange = self._exchange
        exchange.context.checkpoint.spoil()
        exchange.start(200, EVENT_STREAM, STREAM_HEADERS)
        is_over, asked_s = False, -ASK_EVERY_S
        with Pings(exchange, ping_s, lambda: self._num_events):
            while not self._has_last:
                if not is_over and (now := time.monotonic()) >= asked_s + ASK_EVERY_S:
                    asked_s = now
                    is_over = not await self._store.has_job(self._id, self._owner)
                if not await self._send_some():  # all that there was when it was over
                    if is_over:
                        break
                    await asyncio.sleep(LOOK_EVERY_S)
        exchange.finish(b"" if self._has_last else await self._last_event())

    async def _send_some(self) -> bool:
        """Whether there was something in the file."""
        blobs, offset = self._store.objects.blobs, self._offset
        data = await self._store.objects.in_files("read_events", lambda: read_events(blobs, self._id, offset))
        self._offset += len(data)
        *events, self._rest = (self._rest + data).split(END_OF_EVENT)
        wanted = []
        for event in events:
            if self._num_events > self._after:
                wanted.append(event)
            self._num_events += 1
            self._has_last = event.startswith(LAST_EVENTS)
        if wanted:
            self._exchange.write(END_OF_EVENT.join((*wanted, b"")))
            await self._exchange.drain()
        return bool(data)

    async def _last_event(self) -> bytes:
        """For a response that ended without one, which failed, or whose process was killed at its end; a cancelled one
        has none."""
        stored = await self._store.get(self._id, self._owner)
        response = stored_response(stored).response if stored is not None else {"status": "deleted"}
        kind = f"response.{response['status']}"
        if not f"event: {kind}\n".encode().startswith(LAST_EVENTS) or self._num_events <= self._after:
            return b""
        data = orjson.dumps({"type": kind, "response": response, "sequence_number": self._num_events})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
