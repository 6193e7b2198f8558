"""The blocks of content that the events of an output make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from slipstream.router.api.anthropic.thinking_signature import signature_of
from slipstream.router.api.generation.answer.output import Events
from slipstream.router.parsers.call_id import call_id_of
from slipstream.router.parsers.events import ArgumentsDelta, CallBegin, ContentDelta, OutputEvent, ReasoningDelta

BlockType = Literal["text", "thinking", "tool_use"]


class BlockStart(NamedTuple):
    """`name` and `id` are those of a call."""

    type: BlockType
    id: str = ""
    name: str = ""


class BlockDelta(NamedTuple):
    type: BlockType
    text: str


class BlockStop(NamedTuple):
    """`signature` is that of a block of thinking."""

    signature: str = ""


BlockEvent = BlockStart | BlockDelta | BlockStop


@dataclass(slots=True)
class AnswerBlocks:
    """Takes the events of one output, and says where blocks begin and end. White space between blocks is in none: as
    content it would be a block that Anthropic's API does not take back. All follows from the events, however they are
    cut."""

    answer_id: str
    shows_thinking: bool = True
    _open: BlockType | None = None
    _space: str = ""  # that content has begun with
    _thinking: list[str] = field(default_factory=list)
    _ids: dict[int, str] = field(default_factory=dict)

    @property
    def is_in_text(self) -> bool:
        """More content is more of a text, and nothing else."""
        return self._open == "text"

    def take(self, events: str | Events) -> Iterator[BlockEvent]:
        if isinstance(events, str):
            yield from self._content(events)
            return
        for event in events:
            yield from self._taken(event)

    def finish(self) -> Iterator[BlockEvent]:
        """Ends the block that is open."""
        self._space = ""
        if self._open is not None:
            yield self._stop()

    def _taken(self, event: OutputEvent) -> Iterator[BlockEvent]:
        match event:
            case ContentDelta(text):
                yield from self._content(text)
            case ReasoningDelta(text):
                yield from self._opened("thinking")
                self._thinking.append(text)
                if self.shows_thinking:
                    yield BlockDelta("thinking", text)
            case CallBegin():
                yield from self.finish()
                self._open = "tool_use"
                yield BlockStart("tool_use", self._id_of(event), event.name)
            case ArgumentsDelta(_, text):
                yield BlockDelta("tool_use", text)

    def _content(self, text: str) -> Iterator[BlockEvent]:
        if self._open != "text":
            self._space += text
            if not self._space or self._space.isspace():
                return
            text, self._space = self._space, ""
            yield from self._opened("text")
        if text:
            yield BlockDelta("text", text)

    def _opened(self, kind: BlockType) -> Iterator[BlockEvent]:
        if self._open != kind:
            yield from self.finish()
            self._open = kind
            yield BlockStart(kind)

    def _stop(self) -> BlockStop:
        is_thinking, self._open = self._open == "thinking", None
        if not is_thinking:
            return BlockStop()
        thinking, self._thinking = "".join(self._thinking), []
        return BlockStop(signature_of(thinking, self.shows_thinking))

    def _id_of(self, begin: CallBegin) -> str:
        if begin.index not in self._ids:
            self._ids[begin.index] = call_id_of(begin, self.answer_id, self._ids.values(), "toolu")
        return self._ids[begin.index]


def whole_blocks(events: Iterable[BlockEvent]) -> list[dict[str, Any]]:
    """The content of a whole answer."""
    made: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        match event:
            case BlockStart("tool_use", call_id, name):
                made.append({"type": "tool_use", "id": call_id, "name": name})
            case BlockStart(kind):
                made.append({"type": kind})
            case BlockDelta(_, text):
                texts.append(text)
            case BlockStop(signature):
                text, texts = "".join(texts), []
                block = made[-1]
                if block["type"] == "tool_use":
                    block["input"] = input_of(text)
                elif block["type"] == "thinking":
                    block |= {"thinking": text, "signature": signature}
                else:
                    block["text"] = text
    return made


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object: of those that were cut off, what is there; of what is none, nothing."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings") if arguments else {}
    except ValueError:
        value = with_halves_of_pairs(arguments)
    return value if isinstance(value, dict) else {}


def with_halves_of_pairs(arguments: str) -> Any:
    """JSON with escapes of half a surrogate pair, which `from_json` refuses, and clients that read a stream do not;
    None: it is no JSON."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None
