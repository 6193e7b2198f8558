"""The JSON of answers, both whole and in chunks. The parts that do not change within a stream are rendered only
once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic

import orjson

from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.output import AnswerReason, Out, TokenEntry
from slipstream.router.api.generation.answer.pings import PING
from slipstream.router.api.generation.answer.token_names import LogprobNames, finite, token_name
from slipstream.router.api.generation.answer.token_report import NO_REPORT, TokenReport
from slipstream.router.http.http_error import HttpError

DONE = b"data: [DONE]\n\n"
NOTHING_MORE: Mapping[str, Any] = {}


class ChunkFormat:
    """How the chunks of both formats begin and end. `KIND` is the name of their object, and `TEXT_END` ends a choice
    that consists of text only. Where there are no log-probabilities, `names` may be None."""

    KIND: ClassVar[str]
    TEXT_END: ClassVar[bytes]
    ping = PING

    def __init__(
        self,
        answer: AnswerHead,
        names: LogprobNames | None,
        logprobs: bool,
        include_usage: bool,
        report: TokenReport = NO_REPORT,
    ) -> None:
        self._answer = answer
        self._token_names = names
        self._report = report
        self._new_ids: dict[int, list[int]] = {}  # of the next chunk of each choice
        self._begun: set[int] = set()  # choices that have had their first chunk
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._head = self._chunk_head()
        self._end_with(b'],"usage":null}\n\n' if include_usage else b"]}\n\n")

    @property
    def _names(self) -> LogprobNames:
        assert self._token_names is not None
        return self._token_names

    def add_ids(self, index: int, token_ids: list[int]) -> None:
        """The next chunk of a choice has these tokens."""
        self._new_ids.setdefault(index, []).extend(token_ids)

    def served_by(self, version: str) -> None:
        if version != self._answer.version:
            self._answer = self._answer._replace(version=version)
            self._head = self._chunk_head()

    def set_usage(self, usage: TokenUsage) -> None:
        self._end_with(b'],"usage":%b}\n\n' % orjson.dumps(usage.as_json()))

    def stopped_by(self, index: int, stop_string: str) -> None:
        """OpenAI's answers do not name it."""

    def stream_end(self, usage: TokenUsage, explained: bytes) -> bytes:
        """A chunk without choices, if the client asked for what it has, and the mark of the end. What explains the
        answer and its usage are in one chunk, because clients look for the usage in the last one."""
        fields = b',"usage":' + orjson.dumps(usage.as_json()) if self._include_usage else b""
        if explained:
            fields += b',"slipstream":' + explained
        return (b"%b]%b}\n\n" % (self._head, fields) if fields else b"") + DONE

    def failure(self, error: HttpError) -> bytes:
        """An event with OpenAI's error object, without the mark of the end."""
        return b"data: " + error.body() + b"\n\n"

    def _chunk_head(self) -> bytes:
        return b"data: " + envelope(self._answer, self.KIND) + b',"choices":['

    def _end_with(self, tail: bytes) -> None:
        self._tail = tail
        self._text_tail = self.TEXT_END + tail


class ChatChunkFormat(ChunkFormat, Generic[Out]):
    """What `chat.completion.chunk`s have in common, be their output text or events."""

    KIND = "chat.completion.chunk"
    TEXT_END = b'},"logprobs":null,"finish_reason":null}'

    def logprob(self, entry: TokenEntry) -> orjson.Fragment:
        top = [self._token_json(*pair) for pair in entry.logprob.top]
        return orjson.Fragment(
            orjson.dumps(self._token_json(entry.token_id, entry.logprob.logprob) | {"top_logprobs": top})
        )

    def _render(self, index: int, delta: Mapping[str, Any], logprobs: list[TokenEntry], reason: str | None) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs_json(map(self.logprob, logprobs)) if logprobs else None,
            "finish_reason": reason,
        }
        is_first = index not in self._begun
        self._begun.add(index)
        if not self._report.returns_ids:
            return self._head + orjson.dumps(choice) + self._tail
        choice["token_ids"] = self._new_ids.pop(index, [])
        tail = self._tail
        if is_first:
            tail = b'],"prompt_token_ids":%b%b' % (orjson.dumps(self._report.prompt_ids(index)), tail[1:])
        return self._head + orjson.dumps(choice) + tail

    def _whole(
        self,
        choices: Sequence[WholeChoice[Out]],
        rendered: list[dict[str, Any]],
        usage: TokenUsage,
        explained: bytes,
    ) -> bytes:
        """The whole answer of `rendered` choices, with what it says of tokens."""
        more: dict[str, Any] = {}
        if self._report.returns_ids:
            for choice, fields in zip(choices, rendered, strict=True):
                fields["token_ids"] = choice.token_ids
            more["prompt_token_ids"] = self._report.prompt_ids(0)
        if self._report.prompt_top is not None and choices[0].prompt is not None:
            more["prompt_logprobs"] = choices[0].prompt.vllm
        return whole_answer(self._answer, "chat.completion", rendered, usage, explained, more)

    def _logprobs_json(self, logprobs: Iterable[orjson.Fragment]) -> dict[str, Any]:
        return {"content": list(logprobs), "refusal": None}

    def _token_json(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._names.bytes_of(token_id)
        return {"token": token_name(raw), "logprob": finite(logprob), "bytes": list(raw)}


class ChatFormat(ChatChunkFormat[str]):
    """`chat.completion` and `chat.completion.chunk` of outputs that are text."""

    def text_chunk(self, index: int, text: str, logprobs: list[TokenEntry]) -> bytes:
        if not logprobs and index in self._begun and not self._new_ids:
            return b'%b{"index":%d,"delta":{"content":%b%b' % (self._head, index, orjson.dumps(text), self._text_tail)
        return self._chunk(index, text, logprobs, None)

    def final_chunk(self, index: int, text: str, logprobs: list[TokenEntry], reason: AnswerReason) -> bytes:
        before = self._chunk(index, text, logprobs, None) if text or logprobs else b""
        return before + self._chunk(index, None, [], reason)

    def whole(self, choices: Sequence[WholeChoice[str]], usage: TokenUsage, explained: bytes = b"") -> bytes:
        rendered = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs_json(choice.logprobs) if self._logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._whole(choices, rendered, usage, explained)

    def _chunk(self, index: int, text: str | None, logprobs: list[TokenEntry], reason: AnswerReason | None) -> bytes:
        delta: dict[str, str] = {}
        if index not in self._begun:
            delta = {"role": "assistant", "content": ""}
        if text is not None:
            delta["content"] = text
        return self._render(index, delta, logprobs, reason)


def envelope(answer: AnswerHead, kind: str) -> bytes:
    """The beginning of the object of every chunk, without its closing brace."""
    fields = {"id": answer.id, "object": kind, "created": answer.created_s, "model": answer.model}
    if answer.version:
        fields["system_fingerprint"] = answer.version
    if answer.service_tier:
        fields["service_tier"] = answer.service_tier
    return orjson.dumps(fields)[:-1]


def whole_answer(
    answer: AnswerHead,
    kind: str,
    choices: list[dict[str, Any]],
    usage: TokenUsage,
    explained: bytes,
    more: Mapping[str, Any] = NOTHING_MORE,
) -> bytes:
    """The JSON of a whole answer. `explained` is the JSON of its field `slipstream`; empty: no such field. `more` are
    further fields."""
    return b'%b,"choices":%b,"usage":%b%b%b}' % (
        envelope(answer, kind),
        orjson.dumps(choices),
        orjson.dumps(usage.as_json()),
        b"," + orjson.dumps(more)[1:-1] if more else b"",
        explained and b',"slipstream":' + explained,
    )
