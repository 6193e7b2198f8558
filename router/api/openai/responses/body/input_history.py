"""The items of a conversation as messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.router.api.openai.body.messages import CalledFunction, ChatMessage, TextPart, ToolCallFields
from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.responses.body.input_items import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    InputItem,
    MessageItem,
    ReasoningItem,
    text_of,
)
from slipstream.router.api.openai.responses.body.reasoning_seal import unsealed
from slipstream.router.api.openai.responses.body.tool_fields import INPUT, flat_name
from slipstream.router.text.template.chat_template import to_json


class PlacedItem(NamedTuple):
    """An item and its place in the request; of a stored one that is where it was referred to."""

    item: InputItem
    field: str


class _Draft:
    """The message of an assistant, or several calls in a row, until its end."""

    __slots__ = ("calls", "reasoning", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[ToolCallFields] = []
        self.reasoning: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not (self.texts or self.calls or self.reasoning)

    def message(self) -> ChatMessage:
        """One that consists of reasoning alone has an empty content, as templates know no other."""
        reasoning = "\n\n".join(self.reasoning) or None
        content = "".join(self.texts) if self.texts or not self.calls else None
        return ChatMessage.model_construct(
            role="assistant", content=content, reasoning=reasoning, tool_calls=self.calls or None
        )


class History:
    """Makes messages of items. What an assistant thought, said and called up to the next item of another role is one
    message, as it was one turn. Each call has to have a result, and each result a call before it."""

    def __init__(self, instructions: str | None = None) -> None:
        self._messages: list[ChatMessage] = []
        self._draft = _Draft()
        self._open: dict[str, str] = {}  # calls without a result yet, and the fields of the request that they are in
        self._results: list[ChatMessage] = []
        self._between: list[ChatMessage] = []  # what others said between a call and its result, which follows that
        self._known: set[str] = set()
        if instructions:
            self._messages.append(ChatMessage.model_construct(role="system", content=instructions))

    def add(self, placed: PlacedItem) -> None:
        """Raises HttpError 400."""
        item, field = placed
        if isinstance(item, CallOutputItem):
            self._add_result(item, field)
            return
        if isinstance(item, FunctionCallItem | CustomCallItem):
            self._add_call(item, field)
            return
        if isinstance(item, ReasoningItem):
            self._end_results()
            text = reasoning_of(item)
            if text:
                self._draft.reasoning.append(text)
            return
        assert isinstance(item, MessageItem), "references have been replaced"
        if item.role == "assistant":
            self._end_results()
            content = text_of(item.content)
            self._draft.texts += [content] if isinstance(content, str) else content
            return
        message = ChatMessage.model_construct(role=item.role, content=content_of(item))
        if self._open:
            self._between.append(message)
        else:
            self._end_turn()
            self._messages.append(message)

    def messages(self) -> list[ChatMessage]:
        """All of them. Raises HttpError 400 for calls without a result."""
        self._end_turn()
        return self._messages

    def _add_call(self, item: FunctionCallItem | CustomCallItem, field: str) -> None:
        if item.call_id in self._open:
            raise invalid(f"{field}.call_id", f"'{field}.call_id' is {item.call_id!r:.80}, which another call has.")
        self._end_results()
        self._known.add(item.call_id)
        self._open[item.call_id] = field
        arguments = to_json({INPUT: item.input}) if isinstance(item, CustomCallItem) else item.arguments
        name = flat_name(item.namespace or "", item.name)
        function = CalledFunction.model_construct(name=name, arguments=arguments)
        call = ToolCallFields.model_construct(id=item.call_id, type="function", function=function)
        self._draft.calls.append(call)

    def _add_result(self, item: CallOutputItem, field: str) -> None:
        if item.call_id not in self._open:
            if item.call_id in self._known:
                fault = f"'{field}.call_id' is {item.call_id!r:.80}, which has an output already."
            else:
                fault = f"No tool call found for the output of '{field}' with call_id {item.call_id!r:.80}."
            raise invalid(f"{field}.call_id", fault)
        del self._open[item.call_id]
        message = ChatMessage.model_construct(role="tool", content=content_of(item), tool_call_id=item.call_id)
        self._results.append(message)

    def _end_results(self) -> None:
        """An assistant goes on behind the results of its calls. Where some are still to come, its turn goes on."""
        if self._results and not self._open:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._open:
            call_id, field = next(iter(self._open.items()))
            raise invalid(field, f"No tool output found for the call {call_id!r:.80} of '{field}'.")
        if not self._draft.is_empty:
            self._messages.append(self._draft.message())
            self._draft = _Draft()
        self._messages += [*self._results, *self._between]
        self._results, self._between = [], []


def reasoning_of(item: ReasoningItem) -> str:
    """The reasoning itself where the item has it; a summary of another server's is better than nothing."""
    texts = [part.text for part in item.content or ()]
    if not texts and item.encrypted_content:
        texts = [unsealed(item.encrypted_content)]
    if not any(texts):
        texts = [part.text for part in item.summary or ()]
    return "\n\n".join(text for text in texts if text)


def content_of(item: MessageItem | CallOutputItem) -> str | list[TextPart]:
    content = text_of(item.content if isinstance(item, MessageItem) else item.output)
    if isinstance(content, str):
        return content
    return [TextPart.model_construct(type="text", text=text) for text in content] or ""


def messages_of(items: Sequence[PlacedItem], instructions: str | None) -> list[ChatMessage]:
    """The messages of a conversation. Raises HttpError 400."""
    history = History(instructions)
    for item in items:
        history.add(item)
    return history.messages()
