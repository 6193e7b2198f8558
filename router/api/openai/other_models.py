"""What OpenAI's endpoints need of models that no workers serve, such as tensor models."""

from __future__ import annotations

from typing import Any, Protocol

from slipstream.router.access.caller import Caller
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.http.reader import Request


class OtherModels(Protocol):
    """They have names of their own beside those of the catalog."""

    def cards(self, caller: Caller) -> list[dict[str, Any]]:
        """What `/v1/models` shows of those that the caller may use."""


class TextModels(Protocol):
    """Models that take and give text, and are no language models of workers. The methods raise HttpError."""

    def serves_text(self, name: str) -> bool: ...
    def text_names(self, caller: Caller) -> list[str]: ...
    async def chat(self, request: Request, body: ChatRequest, exchange: ApiExchange) -> None: ...
    async def complete(self, request: Request, body: CompletionRequest, exchange: ApiExchange) -> None: ...
