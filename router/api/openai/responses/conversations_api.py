"""The endpoints of conversations: items that responses add to, and that are read with each."""

from __future__ import annotations

import time
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.openai.body.parsing import BodyParser
from slipstream.router.api.openai.responses.body.chat_translation import in_brackets
from slipstream.router.api.openai.responses.body.input_items import InputItem, InputItemField, not_too_many_parts
from slipstream.router.api.openai.responses.body.request_body import MAX_CONVERSATION_ITEMS
from slipstream.router.api.openai.responses.item_pages import wanted_items
from slipstream.router.api.openai.responses.response_store import (
    CONVERSATION,
    ResponseStore,
    conversation_objects,
    not_found,
    owner_of,
)
from slipstream.router.api.openai.responses.stored_items import shown_items
from slipstream.router.api.openai.schema.fields import Strict
from slipstream.router.api.openai.schema.sampling_fields import Metadata
from slipstream.router.api.page_query import list_json
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.store.stored_object import StoredObject

NewItems = Annotated[
    list[InputItemField],
    Field(max_length=MAX_CONVERSATION_ITEMS, fail_fast=True),
    BeforeValidator(not_too_many_parts),
]
Json = dict[str, Any]


class ConversationRequest(Strict):
    """Body of POST /v1/conversations."""

    metadata: Metadata | None = None
    items: NewItems | None = None


class ConversationUpdate(Strict):
    """Body of POST /v1/conversations/{id}."""

    metadata: Metadata | None


class ConversationItems(Strict):
    """Body of POST /v1/conversations/{id}/items."""

    items: NewItems


class ConversationsApi:
    """OpenAI's `/v1/conversations`."""

    def __init__(self, bodies: BodyParser, store: ResponseStore) -> None:
        self._bodies = bodies
        self._store = store

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", "/v1/conversations", self.create, body=ConversationRequest)
        root, paging = "/v1/conversations/", ("after", "limit", "order", "include")
        routes.add_item("POST", root, "/items", self.add_items, body=ConversationItems)
        routes.add_item("GET", root, "/items", self.list_items, query=paging)
        routes.add_item("GET", root, "", self.retrieve)
        routes.add_item("POST", root, "", self.update, body=ConversationUpdate)
        routes.add_item("DELETE", root, "", self.delete)

    async def create(self, request: Request, exchange: ApiExchange) -> None:
        """Begin a conversation, with up to 20 items."""
        exchange.refuse_if_repeated()
        owner = owner_of(exchange)
        try:
            body = self._bodies.parse(request, exchange, ConversationRequest)
            items = [placed.item for placed in await self._store.resolved(body.items or (), owner, "items")]
        except HttpError as error:
            raise in_brackets(error) from error
        number, now = new_number(), time.time()
        conversation_id = f"conv_{number}"
        metadata = orjson.dumps({"metadata": body.metadata or {}})
        conversation = StoredObject(CONVERSATION, conversation_id, owner, now, metadata)
        added = shown_items(items, number, keeps_ids=False)
        await self._store.add(conversation, *conversation_objects(added, conversation_id, owner, now))
        exchange.respond(200, orjson.dumps(conversation_json(conversation)))

    async def retrieve(self, request: Request, exchange: ApiExchange, path: str) -> None:
        """A conversation, or one item of it at `/items/{item_id}`."""
        conversation_id, item_id = split_path(path)
        found = await self._store.conversation(conversation_id, owner_of(exchange))
        if item_id:
            item = await self._store.conversation_item(conversation_id, item_id, owner_of(exchange))
            exchange.respond(200, orjson.dumps(item))
        else:
            exchange.respond(200, orjson.dumps(conversation_json(found)))

    async def update(self, request: Request, exchange: ApiExchange, conversation_id: str) -> None:
        """Replace the metadata of a conversation."""
        body = self._bodies.parse(request, exchange, ConversationUpdate)
        metadata = orjson.dumps({"metadata": body.metadata or {}})
        changed = await self._store.change_conversation(conversation_id, owner_of(exchange), metadata)
        exchange.respond(200, orjson.dumps(conversation_json(changed)))

    async def delete(self, request: Request, exchange: ApiExchange, path: str) -> None:
        """Remove a conversation with its items, or one item at `/items/{item_id}`."""
        exchange.refuse_if_repeated()
        conversation_id, item_id = split_path(path)
        owner = owner_of(exchange)
        if item_id:
            found = await self._store.conversation(conversation_id, owner)
            await self._store.conversation_item(conversation_id, item_id, owner)
            await self._store.delete_item(item_id, owner)
            exchange.respond(200, orjson.dumps(conversation_json(found)))
            return
        await self._store.delete_conversation(conversation_id, owner)
        answer = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        exchange.respond(200, orjson.dumps(answer))

    async def add_items(self, request: Request, exchange: ApiExchange, conversation_id: str) -> None:
        """Add up to 20 items to a conversation."""
        exchange.refuse_if_repeated()
        owner = owner_of(exchange)
        await self._store.conversation(conversation_id, owner)
        try:
            body = self._bodies.parse(request, exchange, ConversationItems)
            items: list[InputItem] = [one.item for one in await self._store.resolved(body.items, owner, "items")]
        except HttpError as error:
            raise in_brackets(error) from error
        added = shown_items(items, new_number(), keeps_ids=False)
        objects = conversation_objects(added, conversation_id, owner, time.time())
        await self._store.add_to_conversation(conversation_id, owner, *objects)
        exchange.respond(200, orjson.dumps(list_json(added, has_more=False)))

    async def list_items(self, request: Request, exchange: ApiExchange, conversation_id: str) -> None:
        """The items of a conversation."""
        wanted = wanted_items(request)
        owner = owner_of(exchange)
        await self._store.conversation(conversation_id, owner)
        exchange.respond(200, orjson.dumps(await self._store.conversation_page(conversation_id, owner, wanted)))


def conversation_json(stored: StoredObject) -> Json:
    metadata = orjson.loads(stored.body)["metadata"]
    return {"id": stored.id, "object": "conversation", "created_at": int(stored.created_s), "metadata": metadata}


def split_path(path: str) -> tuple[str, str]:
    """The ids of a conversation and of an item, "" if the path names none. Raises HttpError 404."""
    conversation_id, _, rest = path.partition("/")
    folder, _, item_id = rest.partition("/")
    if rest and (folder != "items" or not item_id):
        raise not_found("Conversation", path)
    return conversation_id, item_id


def new_number() -> str:
    """That of a new conversation, or of an addition to one, for ids."""
    return random_bytes(16).hex()
