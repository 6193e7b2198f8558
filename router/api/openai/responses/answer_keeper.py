"""Stores a response at its end, before the client hears of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from slipstream.router.api.generation.generation_batch import ReceivedRequest
from slipstream.router.api.openai.responses.answer.response_format import ResponsesFormat, number_of
from slipstream.router.api.openai.responses.body.input_items import InputItem
from slipstream.router.api.openai.responses.body.request_body import ResponsesRequest
from slipstream.router.api.openai.responses.response_store import (
    ResponseStore,
    chain_object,
    conversation_objects,
    response_object,
)
from slipstream.router.api.openai.responses.stored_items import shown_items
from slipstream.router.store.store_errors import StoreError

log = logging.getLogger(__name__)

STORE_S = 15.0  # a client does not wait longer for the end of its response; writers of other processes get 10 s


class ResponseKeeper:
    """Of one response. All ids are functions of the answer's, so what a router has stored before it was killed is
    replaced by the next one, and not there twice."""

    def __init__(
        self,
        store: ResponseStore,
        form: ResponsesFormat,
        received: ReceivedRequest,
        body: ResponsesRequest,
        own_items: Sequence[InputItem],
        is_stored: bool,
        events_kept: Callable[[], Awaitable[None]],
    ) -> None:
        """`own_items` are those of the request; with `is_stored` the response is kept, else only what it adds to its
        conversation. `events_kept` waits until the events so far are kept, if the response is in the background."""
        self._store = store
        self._form = form
        self._head = received.head
        self._owner = received.caller.tenant("")
        self._body = body
        self._own_items = own_items
        self._is_stored = is_stored
        self._events_kept = events_kept

    async def keep(self, end: bytes) -> bytes:
        """Stores the response, which `end` is the end of. Returns the end to be sent: a response that could not be
        stored says so in its field `store`, as its client has waited for it and paid; one in the background raises
        StoreError, and NotWantedError if it was cancelled meanwhile."""
        head = self._head
        if self._body.background:
            await self._events_kept()
            await self._keep(number_of(head))
            return end
        try:
            async with asyncio.timeout(STORE_S):
                await self._keep(number_of(head))
        except (StoreError, TimeoutError) as error:
            log.error("the response %s could not be stored: %s", head.id, error or f"it took over {STORE_S:g} s")
            return self._form.is_not_stored()
        return end

    async def _keep(self, number: str) -> None:
        """Raises StoreError. A conversation that was deleted meanwhile gets nothing."""
        head, conversation_id = self._head, self._body.conversation_id
        objects = []
        if self._is_stored:
            own = shown_items(self._own_items, number)
            parent = self._body.previous_response_id or ""
            response = self._form.final_document()
            items = [*own, *self._form.output]
            objects.append(chain_object(items, self._owner, head.id, parent, head.created_s))
            objects.append(response_object(response, own, self._owner, head.id, parent, head.created_s))
        if conversation_id is not None:
            added = [*shown_items(self._own_items, number, keeps_ids=False), *self._form.output]
            items_of_it = conversation_objects(added, conversation_id, self._owner, time.time())
            if self._body.background:
                if await self._store.has_conversation(conversation_id, self._owner):
                    objects += items_of_it
            elif await self._store.keep_in_conversation(conversation_id, self._owner, *objects, *items_of_it):
                return
        if self._body.background:
            await self._store.keep_last(head.id, self._owner, *objects)
            return
        await self._store.keep(*objects)
