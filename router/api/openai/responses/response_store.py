"""Responses and conversations in the store.

kind                 id          parent                   body
response             resp_...    previous_response_id     {"response": the response, "input": its own items}
conversation         conv_...                             {"metadata": ...}
conversation_item    msg_... etc. the conversation        the item
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.openai.responses.body.input_history import PlacedItem
from slipstream.router.api.openai.responses.body.input_items import MAX_ITEMS, InputItem, InputItemField, ItemReference
from slipstream.router.api.page_query import PageQuery, list_json
from slipstream.router.api.store_failure import store_failure
from slipstream.router.http.http_error import HttpError
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import StoredObject

RESPONSE, CONVERSATION, ITEM = "response", "conversation", "conversation_item"
ITEMS_AT_A_TIME = 500
REFERENCES_AT_A_TIME = 32
OF_RESPONSE = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{6}")  # ids that `output_id` and `input_id` make
Json = dict[str, Any]

ITEM_LIST: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItemField])


class StoredResponse(NamedTuple):
    """A response and the items of its own input, as they are shown."""

    response: Json
    input: list[Json]

    @property
    def items(self) -> list[Json]:
        return [*self.input, *self.response["output"]]


class Chain(NamedTuple):
    """Responses that follow each other: the id of the first, and the items of all, oldest first."""

    root: str
    items: list[Json]


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
        await self._delete(RESPONSE, response_id, owner, "Response")

    async def chain(self, response_id: str, owner: str) -> Chain:
        """A response and all before it. Raises HttpError 400, in OpenAI's words, if one of them is not there."""
        try:
            found = await self._store.chain(RESPONSE, response_id, owner)
        except StoreError as error:
            raise store_failure(error) from error
        if not found or found[-1].parent:
            missing = found[-1].parent if found else response_id
            message = f"Previous response with id {missing!r:.160} not found."
            raise HttpError(400, message, param="previous_response_id", code="previous_response_not_found")
        items: list[Json] = []
        for one in reversed(found):
            items += stored_response(one).items
        return Chain(found[-1].id, items)

    async def conversation(self, conversation_id: str, owner: str) -> StoredObject:
        """Raises HttpError 404."""
        found = await self._get(CONVERSATION, conversation_id, owner)
        if found is None:
            raise not_found("Conversation", conversation_id)
        return found

    async def conversation_items(self, conversation_id: str, owner: str) -> list[Json]:
        """All of them, oldest first. Raises HttpError 404 if there is no such conversation."""
        await self.conversation(conversation_id, owner)
        items: list[Json] = []
        after, has_more = "", True
        while has_more and len(items) <= MAX_ITEMS:
            try:
                page = await self._store.page(
                    ITEM, owner, parent=conversation_id, after=after, limit=ITEMS_AT_A_TIME, newest_first=False
                )
            except StoreError as error:
                raise store_failure(error) from error
            if page is None:  # the last one left meanwhile
                break
            items += [orjson.loads(one.body) for one in page.objects]
            has_more = page.has_more
            after = page.objects[-1].id if page.objects else ""
        return items

    async def conversation_page(self, conversation_id: str, owner: str, wanted: PageQuery) -> Json:
        """Raises HttpError 400 if there is no item `after`."""
        try:
            page = await self._store.page(
                ITEM,
                owner,
                parent=conversation_id,
                after=wanted.after,
                limit=wanted.limit,
                newest_first=wanted.newest_first,
            )
        except StoreError as error:
            raise store_failure(error) from error
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
        found: dict[str, InputItem] = {}
        ids = list(wanted)
        for begin in range(0, len(ids), REFERENCES_AT_A_TIME):
            part = ids[begin : begin + REFERENCES_AT_A_TIME]
            stored = await asyncio.gather(*[self._item(one, owner) for one in part])
            there = {item_id: item for item_id, item in zip(part, stored, strict=True) if item is not None}
            found |= zip(there, as_items([*there.values()]), strict=True)
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
        try:
            await self._store.put(*objects)
        except StoreError as error:
            raise store_failure(error) from error

    async def keep(self, *objects: StoredObject) -> None:
        """Raises StoreError."""
        await self._store.put(*objects)

    async def _item(self, item_id: str, owner: str) -> Json | None:
        """An item of a response, or of a conversation."""
        of_response = OF_RESPONSE.fullmatch(item_id)
        if of_response is not None:
            found = await self._get(RESPONSE, f"resp_{of_response[1]}", owner)
            if found is not None:
                for item in stored_response(found).items:
                    if item.get("id") == item_id:
                        return item
        stored = await self._get(ITEM, item_id, owner)
        return orjson.loads(stored.body) if stored is not None else None

    async def _delete(self, kind: str, object_id: str, owner: str, what: str, child_kind: str = "") -> None:
        try:
            was_there = await self._store.delete(kind, object_id, owner, child_kind)
        except StoreError as error:
            raise store_failure(error) from error
        if not was_there:
            raise not_found(what, object_id)

    async def _get(self, kind: str, object_id: str, owner: str) -> StoredObject | None:
        try:
            return await self._store.get(kind, object_id, owner)
        except StoreError as error:
            raise store_failure(error) from error


def stored_response(stored: StoredObject) -> StoredResponse:
    body = orjson.loads(stored.body)
    return StoredResponse(body["response"], body["input"])


def response_object(
    response: bytes, own_input: Sequence[Json], owner: str, response_id: str, parent: str, created_s: int
) -> StoredObject:
    """A response as it is stored; `response` is its JSON."""
    body = b'{"response":%b,"input":%b}' % (response, orjson.dumps(own_input))
    return StoredObject(RESPONSE, response_id, owner, created_s, body, parent)


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
