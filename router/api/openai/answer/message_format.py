"""The JSON of chat completions whose output is read by a parser: reasoning, content, calls of tools.

Reasoning is sent under two names, because clients look for one or the other: `reasoning_content` (DeepSeek, older vLLM,
SGLang) and `reasoning` (vLLM since 0.11, OpenRouter).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.output import AnswerReason, Events, TokenEntry
from slipstream.router.api.generation.answer.token_names import LogprobNames
from slipstream.router.api.generation.answer.token_report import NO_REPORT, TokenReport
from slipstream.router.api.openai.answer.formats import ChatChunkFormat
from slipstream.router.parsers.call_id import call_id_of
from slipstream.router.parsers.events import ArgumentsDelta, CallBegin, ContentDelta, OutputEvent, ReasoningDelta


class MessageFormat(ChatChunkFormat[Events]):
    """`chat.completion` and `chat.completion.chunk` of parsed outputs. With `is_legacy` a call is OpenAI's older
    `function_call`."""

    def __init__(
        self,
        answer: AnswerHead,
        names: LogprobNames,
        logprobs: bool,
        include_usage: bool,
        is_legacy: bool = False,
        report: TokenReport = NO_REPORT,
    ) -> None:
        super().__init__(answer, names, logprobs, include_usage, report)
        self._is_legacy = is_legacy
        self._ids: dict[int, dict[int, str]] = {}  # of the calls, by choice and by index

    def text_chunk(self, index: int, text: Events, logprobs: list[TokenEntry]) -> bytes:
        """One chunk for each event; the log-probabilities are in the first."""
        is_plain = not logprobs and index in self._begun and not self._new_ids
        if is_plain and len(text) == 1 and type(text[0]) is ContentDelta:
            content = orjson.dumps(text[0].text)
            return b'%b{"index":%d,"delta":{"content":%b%b' % (self._head, index, content, self._text_tail)
        deltas = [self._delta(index, event) for event in text] or [{}]
        chunks = [self._chunk(index, deltas[0], logprobs, None)]
        chunks += [self._chunk(index, delta, [], None) for delta in deltas[1:]]
        return b"".join(chunks)

    def final_chunk(self, index: int, text: Events, logprobs: list[TokenEntry], reason: AnswerReason) -> bytes:
        before = self.text_chunk(index, text, logprobs) if text or logprobs else b""
        return before + self._chunk(index, {}, [], self._reason(reason))

    def whole(self, choices: Sequence[WholeChoice[Events]], usage: TokenUsage, explained: bytes = b"") -> bytes:
        rendered = [
            {
                "index": choice.index,
                "message": self._message(choice.index, choice.text),
                "logprobs": self._logprobs_json(choice.logprobs) if self._logprobs else None,
                "finish_reason": self._reason(choice.finish_reason),
            }
            for choice in choices
        ]
        return self._whole(choices, rendered, usage, explained)

    def _message(self, index: int, events: Iterable[OutputEvent]) -> dict[str, Any]:
        content, reasoning, calls = "", "", list[dict[str, Any]]()
        for event in events:
            match event:
                case ContentDelta(text):
                    content += text
                case ReasoningDelta(text):
                    reasoning += text
                case CallBegin():
                    calls.append(self._call(index, event))
                case ArgumentsDelta(number, text):
                    calls[number]["function"]["arguments"] += text
        is_silent = not content and (reasoning or calls)
        message: dict[str, Any] = {"role": "assistant", "content": None if is_silent else content, "refusal": None}
        if reasoning:
            message |= reasoning_fields(reasoning)
        if calls and self._is_legacy:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _delta(self, index: int, event: OutputEvent) -> dict[str, Any]:
        match event:
            case ContentDelta(text):
                return {"content": text}
            case ReasoningDelta(text):
                return reasoning_fields(text)
            case CallBegin():
                call = self._call(index, event)
                return (
                    {"function_call": call["function"]}
                    if self._is_legacy
                    else {"tool_calls": [{"index": event.index, **call}]}
                )
            case ArgumentsDelta(number, text):
                function = {"arguments": text}
                if self._is_legacy:
                    return {"function_call": function}
                return {"tool_calls": [{"index": number, "function": function}]}
            case _:
                return {}

    def _call(self, index: int, begin: CallBegin) -> dict[str, Any]:
        """A call without arguments yet."""
        ids = self._ids.setdefault(index, {})
        if begin.index not in ids:
            ids[begin.index] = call_id_of(begin, f"{self._answer.id}/{index}", ids.values())
        return {"id": ids[begin.index], "type": "function", "function": {"name": begin.name, "arguments": ""}}

    def _chunk(self, index: int, delta: dict[str, Any], logprobs: list[TokenEntry], reason: str | None) -> bytes:
        if index not in self._begun:
            delta = {"role": "assistant", "content": "" if reason or not delta else None, **delta}
        return self._render(index, delta, logprobs, reason)

    def _reason(self, reason: AnswerReason) -> str:
        return "function_call" if reason == "tool_calls" and self._is_legacy else reason


def reasoning_fields(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text}
