"""The live state of the cluster, which the dispatcher's process has, in a front process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.ui.live_pages import ENTRIES_PATH, LiveStream
from slipstream.router.frontends.remote_dispatcher import RemoteDispatcher
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request


class FrontLive:
    """Asks the dispatcher's process once a period for all readers here, with the key of the reader that came last. If
    that may not read any more, all of them are asked to come again."""

    def __init__(self, dispatcher: RemoteDispatcher) -> None:
        self._dispatcher = dispatcher
        self._stream = LiveStream(self._read)
        self._request: Request | None = None
        self._request_id = ""

    async def __call__(self, request: Request, exchange: ApiExchange) -> None:
        """Raises HttpError as the dispatcher's process refuses."""
        asked = replace(request, path=ENTRIES_PATH)
        answer = await self._dispatcher.ask(asked, exchange.request_id)  # checks the key of every reader
        if answer.status != 200:
            exchange.respond(answer.status, answer.body, answer.content_type, answer.headers)
            return
        self._request, self._request_id = asked, exchange.request_id
        await self._stream.serve(request, exchange)

    async def _read(self) -> Mapping[str, bytes]:
        assert self._request is not None
        answer = await self._dispatcher.ask(self._request, self._request_id)
        if answer.status != 200:
            raise HttpError(answer.status, "The state of the cluster is not to be read any more.", code="ended")
        return {key: orjson.dumps(entry) for key, entry in orjson.loads(answer.body).items()}
