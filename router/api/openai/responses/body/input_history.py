"""The items of a conversation as messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

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
from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.text.template.chat_template import to_json

Json = dict[str, Any]

# Makes all messages at once, in a third of the time that the constructors take one by one.
MESSAGES: TypeAdapter[list[ChatMessage]] = TypeAdapter(list[ChatMessage])


class PlacedItem(NamedTuple):
    """An item and its place in the request; of a stored one that is where it was referred to."""

    item: InputItem
    field: str


class _Draft:
    """The message of an assistant, or several calls in a row, until its end."""

    __slots__ = ("calls", "reasoning", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Json] = []
        self.reasoning: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not (self.texts or self.calls or self.reasoning)

    def message(self) -> Json:
        """One that consists of reasoning alone has an empty content, as templates know no other."""
        reasoning = "\n\n".join(self.reasoning) or None
        content = "".join(self.texts) if self.texts or not self.calls else None
        return {"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": self.calls or None}


class InputHistory:
    """Makes messages of items. What an assistant thought, said and called up to the next item of another role is one
    message, as it was one turn. Each call has to have a result, and each result a call before it."""

    def __init__(self, instructions: str | None = None) -> None:
        self._messages: list[Json] = []
        self._draft = _Draft()
        self._open: dict[str, str] = {}  # calls without a result yet, and the fields of the request that they are in
        self._results: list[Json] = []
        self._between: list[Json] = []  # what others said between a call and its result, which follows that
        self._known: set[str] = set()
        if instructions:
            self._messages.append({"role": "system", "content": instructions})

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
        message = {"role": item.role, "content": content_of(item)}
        if self._open:
            self._between.append(message)
        else:
            self._end_turn()
            self._messages.append(message)

    def messages(self) -> list[ChatMessage]:
        """All of them. Raises HttpError 400 for calls without a result, and names that are too long with their
        namespace."""
        self._end_turn()
        try:
            return MESSAGES.validate_python(self._messages)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]["msg"]
            raise invalid("input", f"'input' cannot be made a conversation: {fault}.") from error

    def _add_call(self, item: FunctionCallItem | CustomCallItem, field: str) -> None:
        if item.call_id in self._open:
            raise invalid(f"{field}.call_id", f"'{field}.call_id' is {item.call_id!r:.80}, which another call has.")
        self._end_results()
        self._known.add(item.call_id)
        self._open[item.call_id] = field
        arguments = to_json({INPUT: item.input}) if isinstance(item, CustomCallItem) else item.arguments
        name = flat_name(item.namespace or "", item.name)
        function = {"name": name, "arguments": arguments}
        self._draft.calls.append({"id": item.call_id, "type": "function", "function": function})

    def _add_result(self, item: CallOutputItem, field: str) -> None:
        if item.call_id not in self._open:
            if item.call_id in self._known:
                fault = f"'{field}.call_id' is {item.call_id!r:.80}, which has an output already."
            else:
                fault = f"No tool call found for '{field}.call_id', which is {item.call_id!r:.80}."
            raise invalid(f"{field}.call_id", fault)
        del self._open[item.call_id]
        self._results.append({"role": "tool", "content": content_of(item), "tool_call_id": item.call_id})

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


def content_of(item: MessageItem | CallOutputItem) -> str | list[Json]:
    content = text_of(item.content if isinstance(item, MessageItem) else item.output)
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": text} for text in content] or ""


def messages_of(items: Sequence[PlacedItem], instructions: str | None) -> list[ChatMessage]:
    """The messages of a conversation. Raises HttpError 400."""
    history = InputHistory(instructions)
    for item in items:
        history.add(item)
    return history.messages()
