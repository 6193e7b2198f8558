"""The list of models in Anthropic's form, for requests that say which version of its API they speak."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from slipstream.router.api.anthropic.error_form import VERSION_HEADER
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.openai.model_pages import ModelPages
from slipstream.router.http.reader import Request


class ModelPagesOfBothApis(ModelPages):
    """OpenAI's pages, and Anthropic's at the same paths."""

    async def models(self, request: Request, exchange: ApiExchange) -> None:
        """The models that are served, and their aliases; where a model has several versions, also each of those."""
        if VERSION_HEADER not in request.headers:
            return await super().models(request, exchange)
        cards = [anthropic_card(card) for card in self.cards(exchange.context.caller)]
        ids = [card["id"] for card in cards] or [None]
        answer = {"data": cards, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}
        exchange.respond(200, orjson.dumps(answer))

    async def model(self, request: Request, exchange: ApiExchange, name: str) -> None:
        """One model, version or alias."""
        if VERSION_HEADER not in request.headers:
            return await super().model(request, exchange, name)
        exchange.respond(200, orjson.dumps(anthropic_card(self.card_of(name, exchange.context.caller))))


def anthropic_card(card: dict[str, Any]) -> dict[str, Any]:
    """A model as Anthropic's `ModelInfo`. Prompt and output share the context, so that each may be as long as it."""
    created = datetime.fromtimestamp(card["created"], UTC)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
        "lifecycle": "active",
    }
