"""The items of an answer as they grow: which of them begin, go on and end with each event of the output.

An item is open until the output goes on with another kind, or ends. Content that is only white space is held back, and
left out unless more content follows: models write it between their reasoning and their calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from slipstream.router.api.generation.answer.output import Events
from slipstream.router.api.openai.responses.answer.custom_input import CustomInput
from slipstream.router.api.openai.responses.body.reasoning_seal import sealed
from slipstream.router.api.openai.responses.body.tool_fields import ToolSet
from slipstream.router.parsers.call_id import call_id_of
from slipstream.router.parsers.events import ArgumentsDelta, CallBegin, ContentDelta, OutputEvent, ReasoningDelta

ItemKind = Literal["message", "reasoning", "function_call", "custom_tool_call"]
Json: TypeAlias = dict[str, Any]
GROWING: dict[ItemKind, type[ContentDelta | ReasoningDelta]] = {"message": ContentDelta, "reasoning": ReasoningDelta}
PREFIXES: dict[ItemKind, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


@dataclass(slots=True)
class OutputItem:
    """An item of the answer. `call` is there for calls: its id and its names; `index` is its place in the output.
    `is_summary`: it is reasoning whose text is given as its summary."""

    index: int
    kind: ItemKind
    id: str
    call: Json = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    custom: CustomInput | None = None
    seals: bool = False
    is_summary: bool = False

    @property
    def text(self) -> str:
        if len(self.texts) > 1:
            self.texts = ["".join(self.texts)]
        return self.texts[0] if self.texts else ""

    def part(self, *, is_empty: bool = False) -> Json:
        """The content part of a message or of reasoning."""
        text = "" if is_empty else self.text
        if self.kind == "reasoning":
            return {"type": "summary_text" if self.is_summary else "reasoning_text", "text": text}
        logprobs = [] if is_empty else self.logprobs
        return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}

    def as_json(self, *, is_empty: bool = False) -> Json:
        """The item so far, or as it begins."""
        own: Json = {"id": self.id, "type": self.kind}
        text = "" if is_empty else self.text
        status = "in_progress" if is_empty else self.status  # it may have ended before its begin is shown
        if self.kind == "message":
            content = [] if is_empty else [self.part()]
            return {**own, "status": status, "role": "assistant", "content": content}
        if self.kind == "reasoning":
            parts = [] if is_empty else [self.part()]
            texts = {"summary": parts} if self.is_summary else {"summary": [], "content": parts}
            item: Json = {**own, **texts, "status": status}
            if self.seals:
                item["encrypted_content"] = sealed(text)
            return item
        name = "arguments" if self.kind == "function_call" else "input"
        return {**own, "status": status, **self.call, name: text}


class ItemBegin(NamedTuple):
    item: OutputItem


class ItemDelta(NamedTuple):
    item: OutputItem
    text: str
    logprobs: list[Any]


class ItemEnd(NamedTuple):
    item: OutputItem


ItemEvent: TypeAlias = ItemBegin | ItemDelta | ItemEnd


class OutputItems:
    """Reads the events of one output. `number` is that of the answer, in 32 hexadecimal digits: the ids of items begin
    with it, so that an item leads to its answer. `summarizes`: reasoning is given as its own summary."""

    def __init__(self, number: str, tools: ToolSet, seals_reasoning: bool, summarizes: bool = False) -> None:
        self._number = number
        self._tools = tools
        self._seals = seals_reasoning
        self._summarizes = summarizes
        self.items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._blank = ""  # white space that may come to nothing
        self._blank_logprobs: list[Any] = []
        self._call_ids: set[str] = set()

    def grown(self, event: OutputEvent) -> OutputItem | None:
        """The item that this event only adds text to, as most do; None: it does more, and is to be read."""
        item = self._open
        is_text = isinstance(event, ContentDelta | ReasoningDelta)
        if is_text and item is not None and GROWING.get(item.kind) is type(event):
            item.texts.append(event.text)
            return item
        return None

    def read(self, events: Events, logprobs: list[Any]) -> Iterator[ItemEvent]:
        """What follows from events. `logprobs` are those of their content."""
        num_contents = sum([isinstance(event, ContentDelta) for event in events]) if logprobs else 0
        for event in events:
            match event:
                case ContentDelta(text):
                    num_contents -= 1
                    own, logprobs = divided(logprobs, text) if num_contents > 0 else (logprobs, [])
                    yield from self._content(text, own)
                case ReasoningDelta(text):
                    item = self._open
                    if item is None or item.kind != "reasoning":
                        yield from self._begin("reasoning")
                    yield from self._delta(text, [])
                case CallBegin():
                    yield from self._begin_call(event)
                case ArgumentsDelta(_, text):
                    yield from self._arguments(text)

    def finish(self, is_cut: bool) -> Iterator[ItemEvent]:
        """End the output; with `is_cut` at its limit of tokens."""
        if self._blank and not self.items:
            yield from self._begin_message("")
        yield from self._end("incomplete" if is_cut else "completed")

    def as_json(self) -> list[Json]:
        return [item.as_json() for item in self.items]

    def _content(self, text: str, logprobs: list[Any]) -> Iterator[ItemEvent]:
        item = self._open
        if item is not None and item.kind == "message":
            yield from self._delta(text, logprobs)
        elif text.isspace():
            self._blank += text
            self._blank_logprobs += logprobs
        else:
            self._blank_logprobs += logprobs
            yield from self._begin_message(text)

    def _begin_message(self, text: str) -> Iterator[ItemEvent]:
        text, logprobs = self._blank + text, self._blank_logprobs
        yield from self._begin("message")
        yield from self._delta(text, logprobs)

    def _begin_call(self, event: CallBegin) -> Iterator[ItemEvent]:
        known = self._tools.by_name.get(event.name)
        kind: ItemKind = "custom_tool_call" if known is not None and known.is_custom else "function_call"
        name = event.name if known is None else known.tool.name
        call_id = call_id_of(event, self._number, self._call_ids)
        self._call_ids.add(call_id)
        call = {"call_id": call_id, "name": name}
        if known is not None and known.namespace:
            call["namespace"] = known.namespace
        yield from self._begin(kind, call)

    def _arguments(self, text: str) -> Iterator[ItemEvent]:
        item = self._open
        assert item is not None, "arguments belong to a call"
        yield from self._delta(text if item.custom is None else item.custom.add(text), [])

    def _delta(self, text: str, logprobs: list[Any]) -> Iterator[ItemEvent]:
        item = self._open
        assert item is not None
        if text or logprobs:
            item.texts.append(text)
            item.logprobs += logprobs
            yield ItemDelta(item, text, logprobs)

    def _begin(self, kind: ItemKind, call: Json | None = None) -> Iterator[ItemEvent]:
        yield from self._end("completed")
        index = len(self.items)
        item = OutputItem(index, kind, output_id(kind, self._number, index), call or {}, seals=self._seals)
        if kind == "custom_tool_call":
            item.custom = CustomInput()
        item.is_summary = kind == "reasoning" and self._summarizes
        self.items.append(item)
        self._open = item
        yield ItemBegin(item)

    def _end(self, status: Literal["completed", "incomplete"]) -> Iterator[ItemEvent]:
        self._blank, self._blank_logprobs = "", []
        item = self._open
        if item is None:
            return
        if item.custom is not None:
            yield from self._delta(item.custom.finish(), [])
        self._open = None
        item.status = status
        yield ItemEnd(item)


def output_id(kind: ItemKind, number: str, index: int) -> str:
    return f"{PREFIXES[kind]}_{number}{index:06x}"


def divided(logprobs: list[Json], text: str) -> tuple[list[Json], list[Json]]:
    """The log-probabilities of a text, and those of what follows it. White space around it may be left out of it."""
    wanted, so_far = len(text.strip().encode()), b""
    for index, entry in enumerate(logprobs):
        if len(so_far.strip()) >= wanted:
            return logprobs[:index], logprobs[index:]
        so_far += bytes(entry["bytes"])
    return logprobs, []
