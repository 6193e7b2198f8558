"""The JSON of a message, whole and as events: https://platform.claude.com/docs/en/build-with-claude/streaming."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard

import orjson

from slipstream.router.api.anthropic.answer_blocks import (
    AnswerBlocks,
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    whole_blocks,
)
from slipstream.router.api.anthropic.error_form import error_object
from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.output import AnswerReason, Events, TokenEntry
from slipstream.router.http.http_error import HttpError
from slipstream.router.parsers.events import ContentDelta

TEXT_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
)
DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
INPUT_DELTA = ("input_json_delta", "partial_json")
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageHead(NamedTuple):
    """What is known of a message before its output. `ends_at_context`: the output may be as long as there is room for
    in the model's context. `is_edited`: the request says how to edit the context, so that the answer says what was
    done: nothing."""

    answer: AnswerHead
    request_id: str
    num_prompt_tokens: int
    ends_at_context: bool = False
    shows_thinking: bool = True
    is_edited: bool = False


class AnthropicMessage:
    """An `AnswerFormat` of outputs that are text or events. There is one choice, without log-probabilities."""

    ping = PING

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._blocks = AnswerBlocks(head.answer.id, head.shows_thinking)
        self._has_begun = False
        self._index = -1  # of the latest block
        self._text_head = b""  # of each part of its text
        self._reason: AnswerReason = "stop"
        self._stop_string: str | None = None

    def served_by(self, version: str) -> None:
        """This API does not say which version of a model has answered."""

    def set_usage(self, usage: TokenUsage) -> None:
        """This API gives the usage at the end only."""

    def logprob(self, entry: TokenEntry) -> Any:
        raise AssertionError("this API has no log-probabilities")

    def stopped_by(self, index: int, stop_string: str) -> None:
        self._stop_string = stop_string

    def text_chunk(self, index: int, text: str | Events, logprobs: list[TokenEntry]) -> bytes:
        if self._blocks.is_in_text:  # as a rule
            more = text if isinstance(text, str) else text[0].text if is_content(text) else ""
            if more:
                return b"%b%b}}\n\n" % (self._text_head, orjson.dumps(more))
        return self._begun(self._rendered(self._blocks.take(text)))

    def final_chunk(self, index: int, text: str | Events, logprobs: list[TokenEntry], reason: AnswerReason) -> bytes:
        self._reason = reason
        last = self._rendered(self._blocks.take(text)) + self._rendered(self._blocks.finish())
        return self._begun(last, must_begin=True)

    def stream_end(self, usage: TokenUsage, explained: bytes) -> bytes:
        end = {"type": "message_delta", "delta": self._end(self._reason), "usage": usage_json(usage)}
        return event_of(end | self._edited()) + event_of({"type": "message_stop"})

    def failure(self, error: HttpError) -> bytes:
        return event_of(error_object(error, self._head.request_id))

    def whole(self, choices: Sequence[WholeChoice[Any]], usage: TokenUsage, explained: bytes = b"") -> bytes:
        (choice,) = choices
        content = whole_blocks([*self._blocks.take(choice.text), *self._blocks.finish()])
        message = self._message(content, usage_json(usage)) | self._end(choice.finish_reason)
        return dumped(message | self._edited())

    def _begun(self, events: bytes, must_begin: bool = False) -> bytes:
        """The events, with the message's own beginning before the first of them."""
        if self._has_begun or not (events or must_begin):
            return events
        self._has_begun = True
        usage = usage_json(TokenUsage(self._head.num_prompt_tokens, 0, 0))
        return event_of({"type": "message_start", "message": self._message([], usage)}) + events

    def _rendered(self, events: Iterable[BlockEvent]) -> bytes:
        return b"".join([part for event in events for part in self._parts(event)])

    def _parts(self, event: BlockEvent) -> Iterable[bytes]:
        match event:
            case BlockDelta("text", text):
                yield b"%b%b}}\n\n" % (self._text_head, orjson.dumps(text))
            case BlockDelta(kind, text):
                name, key = DELTAS.get(kind, INPUT_DELTA)
                yield self._delta({"type": name, key: text})
            case BlockStart():
                self._index += 1
                self._text_head = TEXT_DELTA % self._index
                block = empty_block(event)
                yield event_of({"type": "content_block_start", "index": self._index, "content_block": block})
            case BlockStop(signature):
                if signature:
                    yield self._delta({"type": "signature_delta", "signature": signature})
                yield event_of({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: dict[str, str]) -> bytes:
        return event_of({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        answer = self._head.answer
        return {
            "id": answer.id,
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _end(self, reason: AnswerReason) -> dict[str, Any]:
        """Why the message ended."""
        if reason == "stop":
            name = "end_turn" if self._stop_string is None else "stop_sequence"
        elif reason == "tool_calls":
            name = "tool_use"
        else:
            name = "model_context_window_exceeded" if self._head.ends_at_context else "max_tokens"
        return {"stop_reason": name, "stop_sequence": self._stop_string if name == "stop_sequence" else None}

    def _edited(self) -> dict[str, Any]:
        return {"context_management": {"applied_edits": []}} if self._head.is_edited else {}


def is_content(events: Events) -> TypeGuard[list[ContentDelta]]:
    """Whether there is nothing but one part of content."""
    return len(events) == 1 and type(events[0]) is ContentDelta


def empty_block(start: BlockStart) -> dict[str, Any]:
    match start.type:
        case "tool_use":
            return {"type": "tool_use", "id": start.id, "name": start.name, "input": {}}
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case _:
            return {"type": "text", "text": ""}


def event_of(fields: dict[str, Any]) -> bytes:
    """A server-sent event of the type that its data names."""
    return b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), orjson.dumps(fields))


def usage_json(usage: TokenUsage) -> dict[str, Any]:
    """Here every prefix is cached without being asked for, so that none counts as written to a cache."""
    made: dict[str, Any] = {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
        "service_tier": "standard",
    }
    if usage.num_reasoning_tokens is not None:
        made["output_tokens_details"] = {"thinking_tokens": usage.num_reasoning_tokens}
    return made


def dumped(message: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(message)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, or half a surrogate pair, which stays an escape
        return json.dumps(message, separators=(",", ":")).encode()
