"""The JSON of plain completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from slipstream.router.api.generation.answer.answer_format import TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.output import AnswerReason, TokenEntry
from slipstream.router.api.generation.answer.token_names import CompletionLogprob
from slipstream.router.api.openai.answer.formats import ChunkFormat, whole_answer


class CompletionFormat(ChunkFormat):
    """`text_completion`, which is the same object for whole answers and for chunks."""

    KIND = "text_completion"
    TEXT_END = b',"logprobs":null,"finish_reason":null}'

    def logprob(self, entry: TokenEntry) -> CompletionLogprob:
        logprob = entry.logprob
        return self._names.completion_logprob(entry.token_id, logprob.logprob, logprob.top, entry.offset)

    def text_chunk(self, index: int, text: str, logprobs: list[TokenEntry]) -> bytes:
        if not logprobs and not self._new_ids:
            return b'%b{"index":%d,"text":%b%b' % (self._head, index, orjson.dumps(text), self._text_tail)
        return self._chunk(index, text, logprobs, None)

    def final_chunk(self, index: int, text: str, logprobs: list[TokenEntry], reason: AnswerReason) -> bytes:
        return self._chunk(index, text, logprobs, reason)

    def whole(self, choices: Sequence[WholeChoice[str]], usage: TokenUsage, explained: bytes = b"") -> bytes:
        return whole_answer(self._answer, "text_completion", list(map(self._whole_choice, choices)), usage, explained)

    def _whole_choice(self, choice: WholeChoice[str]) -> dict[str, Any]:
        prompt, logprobs = choice.prompt, choice.logprobs
        if prompt is not None and prompt.echoed:
            shown = [logprob._replace(offset=logprob.offset + prompt.num_chars) for logprob in logprobs]
            logprobs = [*prompt.echoed, *shown]
        rendered = self._choice(choice.index, choice.text, logprobs, choice.finish_reason, self._logprobs)
        if self._report.returns_ids:
            rendered["prompt_token_ids"] = self._report.prompt_ids(choice.index)
            rendered["token_ids"] = choice.token_ids
        if prompt is not None and prompt.vllm is not None:
            rendered["prompt_logprobs"] = prompt.vllm
        return rendered

    def _chunk(self, index: int, text: str, logprobs: list[TokenEntry], reason: AnswerReason | None) -> bytes:
        choice = self._choice(index, text, list(map(self.logprob, logprobs)), reason, bool(logprobs))
        if self._report.returns_ids:
            if index not in self._begun:
                self._begun.add(index)
                choice["prompt_token_ids"] = self._report.prompt_ids(index)
            choice["token_ids"] = self._new_ids.pop(index, [])
        return self._head + orjson.dumps(choice) + self._tail

    def _choice(
        self, index: int, text: str, logprobs: list[CompletionLogprob], reason: AnswerReason | None, shows: bool
    ) -> dict[str, Any]:
        columns = self._logprobs_json(logprobs) if shows else None
        return {"index": index, "text": text, "logprobs": columns, "finish_reason": reason}

    def _logprobs_json(self, logprobs: list[CompletionLogprob]) -> dict[str, Any]:
        return {
            "tokens": [logprob.token for logprob in logprobs],
            "token_logprobs": [logprob.logprob for logprob in logprobs],
            "top_logprobs": [logprob.top for logprob in logprobs],
            "text_offset": [logprob.offset for logprob in logprobs],
        }
