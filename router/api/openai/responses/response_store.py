"""Responses and conversations in the store.

kind                 id          parent                   body
response             resp_...    previous_response_id     {"response": the response, "input": its own items}
response_items       resp_...    previous_response_id     [its own items and those of its output]
conversation         conv_...                             {"metadata": ...}
conversation_item    msg_... etc. the conversation        the item

The items of a response are there a second time, as those of a chain are read with each request, while a response
repeats long instructions and lists of tools.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.openai.responses.body.input_history import PlacedItem
from slipstream.router.api.openai.responses.body.input_items import MAX_ITEMS, InputItem, InputItemField, ItemReference
from slipstream.router.api.page_query import PageQuery, list_json
from slipstream.router.api.store_failure import store_failures
from slipstream.router.http.failover.journal import Identity
from slipstream.router.http.http_error import HttpError
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.stored_object import StoredObject

RESPONSE, RESPONSE_ITEMS, CONVERSATION, ITEM = "response", "response_items", "conversation", "conversation_item"
FIRST_ITEMS = 32  # of a conversation; then as many as their size allows
ITEMS_AT_A_TIME = 500
MIN_HISTORY_BYTES = 16 << 20
HISTORY_BYTES_PER_TOKEN = 32  # JSON of a conversation that the context can hold, several times over
INLINE_BYTES = 64 << 10  # parsed on the event loop
REFERENCES_AT_A_TIME = 32
OF_RESPONSE = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{6}")  # ids that `output_id` and `input_id` make
Json = dict[str, Any]

ITEM_LIST: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItemField])


class NotWantedError(Exception):
    """A response has been cancelled or deleted, or another process has ended it."""


class StoredResponse(NamedTuple):
    """A response and the items of its own input, as they are shown."""

    response: Json
    input: list[Json]


class Chain(NamedTuple):
    """Responses that follow each other: the id of the first, None if the oldest were left out; and the items of all,
    oldest first."""

    root: str | None
    items: list[Json]


class HistoryLimit(NamedTuple):
    """How much of a conversation is read. What is longer is refused, or with `cuts` read without its oldest items."""

    max_bytes: int
    cuts: bool = False

    @classmethod
    def of(cls, max_model_len: int | None, truncation: str | None) -> HistoryLimit:
        """`max_model_len` is the longest context of all models."""
        most = max(MIN_HISTORY_BYTES, HISTORY_BYTES_PER_TOKEN * (max_model_len or 0))
        return cls(most, truncation == "auto")

    def within(self, items: list[Json], has_more: bool, field: str) -> list[Json]:
        """The items of a conversation, oldest first, before which there are others if it `has_more`. Raises HttpError
        400."""
        if not has_more and len(items) <= MAX_ITEMS:
            return items
        if not self.cuts:
            message = (
                f"The conversation of '{field}' is too long: it has more than {MAX_ITEMS} items, or {self.max_bytes} "
                "bytes. With `truncation: auto` the oldest are left out."
            )
            raise HttpError(400, message, param=field, code="conversation_too_long")
        return without_lone_results(items[-MAX_ITEMS:])


class ResponseStore:
    """Methods raise HttpError 503 if the store fails. `owner` is the tenant of the caller: what others have is not
    there."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def is_there(self) -> bool:
        """Whether anything can be stored."""
        return not self._store.problem

    def check_is_there(self, field: str) -> None:
        """Raises HttpError 400 if nothing can be stored, and so nothing is there for a field that needs it."""
        if self._store.problem:
            message = f"'{field}' needs the store of this router: {self._store.problem}."
            raise HttpError(400, message, param=field, code="unsupported_parameter")

    async def response(self, response_id: str, owner: str) -> StoredResponse:
        """Raises HttpError 404."""
        found = await self._get(RESPONSE, response_id, owner)
        if found is None:
            raise not_found("Response", response_id)
        return stored_response(found)

    async def delete_response(self, response_id: str, owner: str) -> None:
        """Raises HttpError 404."""
        with store_failures():
            await self._store.delete(RESPONSE_ITEMS, response_id, owner)
        await self._delete(RESPONSE, response_id, owner, "Response")

    async def chain(self, response_id: str, owner: str, limit: HistoryLimit) -> Chain:
        """A response and all before it. Raises HttpError 400, in OpenAI's words, if one of them is not there, and if
        they are too long."""
        with store_failures():
            found, has_more = await self._store.chain(RESPONSE_ITEMS, response_id, owner, limit.max_bytes)
        if not found or (found[-1].parent and not has_more):
            missing = found[-1].parent if found else response_id
            message = f"Previous response with id {missing!r:.160} not found."
            raise HttpError(400, message, param="previous_response_id", code="previous_response_not_found")
        items = [item for of_one in await parsed(found[::-1]) for item in of_one]
        read = limit.within(items, has_more, "previous_response_id")
        return Chain(found[-1].id if len(read) == len(items) and not has_more else None, read)

    async def conversation(self, conversation_id: str, owner: str) -> StoredObject:
        """Raises HttpError 404."""
        found = await self._get(CONVERSATION, conversation_id, owner)
        if found is None:
            raise not_found("Conversation", conversation_id)
        return found

    async def conversation_items(
        self, conversation_id: str, owner: str, limit: HistoryLimit, begun: Identity | None = None
    ) -> list[Json]:
        """All of them, oldest first; for an answer that another router has `begun`, those that it began with. Raises
        HttpError 404 if there is no such conversation, 400 if it is too long."""
        await self.conversation(conversation_id, owner)
        newest: list[StoredObject] = []
        num_bytes, num_wanted, has_more = 0, FIRST_ITEMS, True
        while has_more and num_bytes < limit.max_bytes and len(newest) <= MAX_ITEMS:
            after = newest[-1].id if newest else ""
            with store_failures():
                page = await self._store.page(
                    ITEM, owner, parent=conversation_id, after=after, limit=num_wanted, newest_first=True
                )
            if page is None:  # the last one was removed meanwhile
                num_bytes -= len(newest.pop().body)
                continue
            newest += page.objects
            num_bytes += sum([len(one.body) for one in page.objects])
            has_more = page.has_more
            num_wanted = min(ITEMS_AT_A_TIME, 1 + (limit.max_bytes - num_bytes) * len(newest) // max(num_bytes, 1))
        present = [one for one in reversed(newest) if begun is None or was_there(one, begun)]
        return limit.within(await parsed(present), has_more, "conversation")

    async def conversation_page(self, conversation_id: str, owner: str, wanted: PageQuery) -> Json:
        """Raises HttpError 400 if there is no item `after`."""
        with store_failures():
            page = await self._store.page(
                ITEM,
                owner,
                parent=conversation_id,
                after=wanted.after,
                limit=wanted.limit,
                newest_first=wanted.newest_first,
            )
        if page is None:
            raise wanted.unknown_after()
        return list_json([orjson.loads(one.body) for one in page.objects], page.has_more)

    async def conversation_item(self, conversation_id: str, item_id: str, owner: str) -> Json:
        """Raises HttpError 404."""
        found = await self._get(ITEM, item_id, owner)
        if found is None or found.parent != conversation_id:
            raise not_found("Item", item_id)
        item: Json = orjson.loads(found.body)
        return item

    async def add_to_conversation(self, conversation_id: str, owner: str, *objects: StoredObject) -> None:
        """Raises HttpError 404, and 507 if there is no room."""
        with store_failures():
            if not await self.keep_in_conversation(conversation_id, owner, *objects):
                raise not_found("Conversation", conversation_id)

    async def keep_in_conversation(self, conversation_id: str, owner: str, *objects: StoredObject) -> bool:
        """Whether the conversation is still there; if not, nothing is stored. Raises StoreError."""
        return await self._store.put_children(CONVERSATION, conversation_id, owner, *objects)

    async def change_conversation(self, conversation_id: str, owner: str, body: bytes) -> StoredObject:
        """Gives it another body. Raises HttpError 404."""

        def change(before: StoredObject | None) -> StoredObject | None:
            return before and before._replace(body=body)

        with store_failures():
            changed = await self._store.change(CONVERSATION, conversation_id, owner, change)
        if changed is None:
            raise not_found("Conversation", conversation_id)
        return changed

    async def delete_conversation(self, conversation_id: str, owner: str) -> None:
        """Raises HttpError 404."""
        await self._delete(CONVERSATION, conversation_id, owner, "Conversation", ITEM)

    async def delete_item(self, item_id: str, owner: str) -> None:
        """Raises HttpError 404."""
        await self._delete(ITEM, item_id, owner, "Item")

    async def resolved(self, items: Sequence[InputItem], owner: str, field: str) -> list[PlacedItem]:
        """The items of a field, with what stands in place of references. Raises HttpError 404 for one to what is not
        there."""
        wanted = {item.id: index for index, item in enumerate(items) if isinstance(item, ItemReference)}
        if wanted:
            self.check_is_there(f"{field}.{min(wanted.values())}.type")
        stored = await self._items([*wanted], owner)
        found = dict(zip(stored, as_items([*stored.values()]), strict=True))
        placed = []
        for index, item in enumerate(items):
            place = f"{field}.{index}"
            if isinstance(item, ItemReference):
                if item.id not in found:
                    message = f"Item with id {item.id!r:.160} not found."
                    raise HttpError(404, message, param=f"{place}.id", code="item_not_found")
                item = found[item.id]
            placed.append(PlacedItem(item, place))
        return placed

    async def add(self, *objects: StoredObject) -> None:
        """Raises HttpError 507 if there is no room."""
        with store_failures():
            await self.keep(*objects)

    async def keep(self, *objects: StoredObject) -> None:
        """Raises StoreError."""
        await self._store.put(*objects)

    async def keep_last(self, response_id: str, owner: str, *objects: StoredObject) -> None:
        """Stores the end of a response in the background, and what goes with it. Raises StoreError, and NotWantedError
        if the response has ended before."""
        if not await self._store.put_if(RESPONSE, response_id, owner, is_unfinished, *self.with_events(*objects)):
            raise NotWantedError

    def with_events(self, *objects: StoredObject) -> list[StoredObject]:
        """With the size of the events that are kept of a response (see `RunFiles`); its last events are to come, and
        have about the size of the response."""
        sized = []
        for one in objects:
            with suppress(OSError):
                if one.kind == RESPONSE:
                    one = one._replace(blob_bytes=self._store.blobs.path(one.id).stat().st_size + 3 * len(one.body))
            sized.append(one)
        return sized

    async def has_conversation(self, conversation_id: str, owner: str) -> bool:
        """Raises StoreError."""
        return await self._store.get(CONVERSATION, conversation_id, owner) is not None

    async def _items(self, ids: Sequence[str], owner: str) -> dict[str, Json]:
        """Items of responses, each of which is read once, and of conversations; without those that are not there."""
        of_responses: dict[str, None] = {}
        for item_id in ids:
            of_response = OF_RESPONSE.fullmatch(item_id)
            if of_response is not None:
                of_responses[f"resp_{of_response[1]}"] = None
        found: dict[str, Json] = {}
        wanted = set(ids)
        for read in await self._get_each(RESPONSE_ITEMS, [*of_responses], owner):
            found |= {item["id"]: item for item in read if item["id"] in wanted}
        of_conversations = [item_id for item_id in ids if item_id not in found]
        return found | {item["id"]: item for item in await self._get_each(ITEM, of_conversations, owner)}

    async def _get_each(self, kind: str, ids: Sequence[str], owner: str) -> list[Any]:
        """The parsed bodies of those that are there."""
        bodies: list[Any] = []
        for begin in range(0, len(ids), REFERENCES_AT_A_TIME):
            part = ids[begin : begin + REFERENCES_AT_A_TIME]
            stored = await asyncio.gather(*[self._get(kind, one, owner) for one in part])
            bodies += await parsed([one for one in stored if one is not None])
        return bodies

    async def _delete(self, kind: str, object_id: str, owner: str, what: str, child_kind: str = "") -> None:
        with store_failures():
            was_there = await self._store.delete(kind, object_id, owner, child_kind)
        if not was_there:
            raise not_found(what, object_id)

    async def _get(self, kind: str, object_id: str, owner: str) -> StoredObject | None:
        with store_failures():
            return await self._store.get(kind, object_id, owner)


async def parsed(stored: Sequence[StoredObject]) -> list[Any]:
    """The bodies of objects, which do not hold up the event loop if they are long."""

    def parse() -> list[Any]:
        return [orjson.loads(one.body) for one in stored]

    is_short = sum([len(one.body) for one in stored]) <= INLINE_BYTES
    return parse() if is_short else await asyncio.to_thread(parse)


def without_lone_results(items: Sequence[Json]) -> list[Json]:
    """Without results of calls that are not there."""
    calls = {item["call_id"] for item in items if item["type"] in ("function_call", "custom_tool_call")}
    results = ("function_call_output", "custom_tool_call_output")
    return [item for item in items if item["type"] not in results or item["call_id"] in calls]


def is_unfinished(stored: StoredObject | None) -> bool:
    """Whether it is a response in the background that is queued or in progress."""
    return stored is not None and stored.is_pinned


def stored_response(stored: StoredObject) -> StoredResponse:
    body = orjson.loads(stored.body)
    return StoredResponse(body["response"], body["input"])


def response_object(
    response: bytes, own_input: Sequence[Json], owner: str, response_id: str, parent: str, created_s: int
) -> StoredObject:
    """A response as it is stored; `response` is its JSON."""
    body = b'{"response":%b,"input":%b}' % (response, orjson.dumps(own_input))
    return StoredObject(RESPONSE, response_id, owner, created_s, body, parent)


def chain_object(items: Sequence[Json], owner: str, response_id: str, parent: str, created_s: int) -> StoredObject:
    """The items of a response, of its input and its output, for those that go on from it."""
    return StoredObject(RESPONSE_ITEMS, response_id, owner, created_s, orjson.dumps(items), parent)


def was_there(item: StoredObject, begun: Identity) -> bool:
    """Whether an item of a conversation was there when an answer began, of which the second is known. What that answer
    itself has added, before its router was killed, was not: the ids of that have its number."""
    return item.created_s < begun.created_s + 1 and f"{begun.number:032x}" not in item.id


def conversation_objects(
    items: Iterable[Json], conversation_id: str, owner: str, created_s: float
) -> list[StoredObject]:
    """Items of a conversation as they are stored."""
    return [StoredObject(ITEM, item["id"], owner, created_s, orjson.dumps(item), conversation_id) for item in items]


def as_items(items: Sequence[Json]) -> list[InputItem]:
    """What was stored as it was checked when it came."""
    try:
        return ITEM_LIST.validate_python(items, extra="allow")
    except ValidationError as error:  # stored by another version
        raise HttpError(
            500, f"A stored item is not readable: {error.errors()[0]['msg']}", kind="server_error"
        ) from error


def not_found(what: str, object_id: str) -> HttpError:
    return HttpError(404, f"{what} with id {object_id!r:.160} not found.", code="not_found")


def owner_of(exchange: ApiExchange) -> str:
    """The tenant whose responses and conversations the caller sees."""
    return exchange.context.caller.tenant("")
