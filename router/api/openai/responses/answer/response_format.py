"""The JSON of a response, both whole and as events.

The events follow OpenAI's order: `response.created` and `response.in_progress` come with the first token; for each item
`output_item.added`, its parts and their deltas, `output_item.done`; at the end `response.completed`,
`response.incomplete` or `response.failed`. Their numbers are a function of the output's tokens, and so are those of a
stream that another router goes on with.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.output import AnswerReason, Events, TokenEntry
from slipstream.router.api.generation.answer.pings import PING
from slipstream.router.api.generation.answer.token_names import finite, token_name
from slipstream.router.api.openai.responses.answer.output_items import (
    ItemBegin,
    ItemDelta,
    ItemEnd,
    ItemEvent,
    OutputItem,
    OutputItems,
)
from slipstream.router.api.openai.responses.answer.response_document import Json, ResponseDocument, ResponseEnd
from slipstream.router.http.http_error import HttpError
from slipstream.router.text.detokenizer import PieceTable

ERROR_CODES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}


class ResponsesFormat:
    """Of one response, which has one choice."""

    ping = PING

    def __init__(self, document: ResponseDocument, items: OutputItems, pieces: PieceTable) -> None:
        self._document = document
        self._items = items
        self._pieces = pieces
        self._num_events = 0
        self._delta_heads: dict[int, bytes] = {}
        self._reason: AnswerReason | None = None
        self._final: Json | None = None
        self._explained = b""

    def served_by(self, version: str) -> None:
        """A response has no field for the version of its model."""

    def stopped_by(self, index: int, stop_string: str) -> None:
        """A response does not name the stop string."""

    def set_usage(self, usage: TokenUsage) -> None:
        """The usage is only in the last event."""

    def logprob(self, entry: TokenEntry) -> Json:
        top = [self._token_json(*pair) for pair in entry.logprob.top]
        return self._token_json(entry.token_id, entry.logprob.logprob) | {"top_logprobs": top}

    def text_chunk(self, index: int, text: Events, logprobs: list[TokenEntry]) -> bytes:
        """May be empty: not every event of the output shows at once."""
        if len(text) == 1 and not logprobs and (item := self._items.grown(text[0])) is not None:
            return self._delta(item, item.texts[-1], [])
        events = list(self._items.read(text, [self.logprob(entry) for entry in logprobs]))
        return self._begun() + self._rendered(events) if events else b""

    def final_chunk(self, index: int, text: Events, logprobs: list[TokenEntry], reason: AnswerReason) -> bytes:
        self._reason = reason
        events = [*self._items.read(text, [self.logprob(entry) for entry in logprobs])]
        events += self._items.finish(reason == "length")
        return self._begun() + self._rendered(events)

    def stream_end(self, usage: TokenUsage | None, explained: bytes) -> bytes:
        self._end(usage, explained)
        return self._last_event()

    def whole(self, choices: Sequence[WholeChoice[Events]], usage: TokenUsage, explained: bytes = b"") -> bytes:
        (choice,) = choices
        self._reason = choice.finish_reason
        for _ in self._items.read(choice.text, choice.logprobs):
            pass
        for _ in self._items.finish(choice.finish_reason == "length"):
            pass
        self._end(usage, explained)
        return self.final_document()

    def failure(self, error: HttpError) -> bytes:
        """`error`, which says what was wrong in the words of other errors, and `response.failed`."""
        begun = self._begun()
        own = {"code": error.code or "server_error", "message": error.message, "param": error.param}
        code = ERROR_CODES.get(error.kind, "server_error")
        end = ResponseEnd("failed", error={"code": code, "message": error.message})
        self._final = self._document.at_end(end, self._items.as_json())
        return begun + self._event("error", own) + self._event("response.failed", {"response": self._final})

    def final_document(self) -> bytes:
        """The response at its end."""
        assert self._final is not None, "the response has not ended"
        return with_explanation(orjson.dumps(self._final), self._explained)

    def is_not_stored(self) -> bytes:
        """What ends the answer if it could not be stored after all: the last event, or the whole of it."""
        assert self._final is not None, "the response has not ended"
        self._final["store"] = False
        if self._num_events == 0:
            return self.final_document()
        self._num_events -= 1
        return self._last_event()

    @property
    def output(self) -> list[Json]:
        return self._items.as_json()

    def _end(self, usage: TokenUsage | None, explained: bytes) -> None:
        is_cut = self._reason == "length"
        status, reason = ("incomplete", "max_output_tokens") if is_cut else ("completed", None)
        completed_s = None if is_cut else int(time.time())
        end = ResponseEnd(status, usage, completed_s, incomplete_reason=reason)  # type: ignore[arg-type]
        self._final = self._document.at_end(end, self._items.as_json())
        self._explained = explained

    def _last_event(self) -> bytes:
        assert self._final is not None
        fields = {"response": orjson.Fragment(self.final_document())}
        return self._event(f"response.{self._final['status']}", fields)

    def _begun(self) -> bytes:
        """The first two events, if they have not been made yet."""
        if self._num_events:
            return b""
        fields = {"response": self._document.at_begin()}
        return self._event("response.created", fields) + self._event("response.in_progress", fields)

    def _rendered(self, events: Iterable[ItemEvent]) -> bytes:
        return b"".join([self._item_event(event) for event in events])

    def _item_event(self, event: ItemEvent) -> bytes:
        match event:
            case ItemDelta(item, text, logprobs):
                return self._delta(item, text, logprobs)
            case ItemBegin(item):
                return self._item_begin(item)
            case ItemEnd(item):
                return self._item_end(item)

    def _item_begin(self, item: OutputItem) -> bytes:
        added = {"output_index": item.index, "item": item.as_json(is_empty=True)}
        begin = self._event("response.output_item.added", added)
        if item.kind in ("message", "reasoning"):
            part = {**place_of(item), "part": item.part(is_empty=True)}
            begin += self._event(f"response.{part_name(item)}.added", part)
        return begin

    def _delta(self, item: OutputItem, text: str, logprobs: list[Any]) -> bytes:
        head = self._delta_heads.get(item.index)
        if head is None:
            kind = "response.reasoning_summary_text.delta" if item.is_summary else DELTAS[item.kind]
            fields = orjson.dumps({"type": kind, **place_of(item)})[:-1]
            head = self._delta_heads[item.index] = b"event: %b\ndata: %b" % (kind.encode(), fields)
        shown = b',"logprobs":' + (orjson.dumps(logprobs) if logprobs else b"[]") if item.kind == "message" else b""
        number = self._num_events
        self._num_events += 1
        return b'%b,"delta":%b%b,"sequence_number":%d}\n\n' % (head, orjson.dumps(text), shown, number)

    def _item_end(self, item: OutputItem) -> bytes:
        self._delta_heads.pop(item.index, None)
        place, text = place_of(item), item.text
        match item.kind:
            case "message":
                fields = {**place, "text": text, "logprobs": item.logprobs}
                end = self._event("response.output_text.done", fields)
            case "reasoning":
                name = "reasoning_summary_text" if item.is_summary else "reasoning_text"
                end = self._event(f"response.{name}.done", {**place, "text": text})
            case "function_call":
                fields = {**place, "name": item.call["name"], "arguments": text}
                end = self._event("response.function_call_arguments.done", fields)
            case "custom_tool_call":
                end = self._event("response.custom_tool_call_input.done", {**place, "input": text})
        if item.kind in ("message", "reasoning"):
            end += self._event(f"response.{part_name(item)}.done", {**place, "part": item.part()})
        return end + self._event("response.output_item.done", {"output_index": item.index, "item": item.as_json()})

    def _event(self, kind: str, fields: Json) -> bytes:
        number = self._num_events
        self._num_events += 1
        data = orjson.dumps({"type": kind, **fields, "sequence_number": number})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _token_json(self, token_id: int, logprob: float) -> Json:
        raw = self._pieces.bytes_of(token_id)
        return {"token": token_name(raw), "logprob": finite(logprob), "bytes": list(raw)}


DELTAS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
}


def place_of(item: OutputItem) -> Json:
    place: Json = {"item_id": item.id, "output_index": item.index}
    if item.is_summary:
        return {**place, "summary_index": 0}
    return {**place, "content_index": 0} if item.kind in ("message", "reasoning") else place


def part_name(item: OutputItem) -> str:
    """What events call the one part of a message or of reasoning."""
    return "reasoning_summary_part" if item.is_summary else "content_part"


def with_explanation(document: bytes, explained: bytes) -> bytes:
    """`explained` is the JSON of the field `slipstream`; empty: there is none."""
    return b'%b,"slipstream":%b}' % (document[:-1], explained) if explained else document


def number_of(head: AnswerHead) -> str:
    """What the ids of a response and of its items share."""
    return head.id.partition("_")[2]
