"""What an answer says of tokens themselves, beside text: their ids, and log-probabilities of the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from slipstream.router.api.generation.answer.token_names import CompletionLogprob, LogprobNames, finite
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.protocol.messages.prompt_scores import ScoredToken, ScoredTokens
from slipstream.router.text.detokenizer import Detokenizer, PieceTable

ENTRIES_A_TURN = 2048  # rendered at a time: about 2 ms, in which no other request is served


class TokenReport(NamedTuple):
    """`prompts` are the packed ids of each prompt, in order, and `choices_per_prompt` as many as are sent. With
    `returns_ids` the ids of prompts and outputs are sent. `prompt_top` is vLLM's `prompt_logprobs`, `echo_top` the
    `logprobs` of a completion that echoes its prompt; None: those are not wanted."""

    prompts: tuple[bytes, ...] = ()
    choices_per_prompt: int = 1
    returns_ids: bool = False
    prompt_top: int | None = None
    echo_top: int | None = None

    @property
    def num_top(self) -> int | None:
        """How many best tokens workers are asked for beside each token of a prompt; None: nothing is asked for."""
        wanted = [num for num in (self.prompt_top, self.echo_top) if num is not None]
        return max(wanted, default=None)

    def prompt_ids(self, index: int) -> list[int]:
        """Those of the prompt of a choice that is sent."""
        return unpack_ids(self.prompts[index // self.choices_per_prompt])


NO_REPORT = TokenReport()


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The log-probabilities of a prompt: as `vllm` shows them, and as `echoed` in front of the output's, which begins
    behind `num_chars` characters."""

    vllm: list[orjson.Fragment | None] | None
    echoed: list[CompletionLogprob]
    num_chars: int


class PromptRenderer:
    """Renders the log-probabilities of prompts. `texts` are those that are echoed, if any are."""

    def __init__(self, report: TokenReport, names: LogprobNames, pieces: PieceTable, texts: Sequence[str]) -> None:
        self._report = report
        self._names = names
        self._pieces = pieces
        self._texts = texts

    async def rendered(self, prompt: int, scores: Sequence[ScoredTokens]) -> RenderedPrompt:
        """Those of the prompt with this number, a few at a time."""
        report, names, token_ids = self._report, self._names, unpack_ids(self._report.prompts[prompt])
        text = self._texts[prompt] if self._texts else ""
        vllm: list[orjson.Fragment | None] | None = None if report.prompt_top is None else [None]
        first_name = names.of(token_ids[0])
        echoed = [] if report.echo_top is None else [CompletionLogprob(first_name, None, None, 0)]
        detokenizer = Detokenizer(self._pieces)
        num_chars, num_entries = len(detokenizer.add(token_ids[0])), 0
        for part in scores:
            for token_id, scored in zip(token_ids[part.first : part.end], part.tokens(), strict=True):
                if vllm is not None:
                    vllm.append(self._as_in_vllm(token_id, scored))
                if report.echo_top is not None:
                    offset = min(num_chars, len(text))
                    num_chars += len(detokenizer.add(token_id))
                    top = scored.top[: report.echo_top]
                    echoed.append(names.completion_logprob(token_id, scored.logprob, top, offset))
                num_entries += 1 + len(scored.top)
                if num_entries >= ENTRIES_A_TURN:
                    num_entries = 0
                    await asyncio.sleep(0)
        return RenderedPrompt(vllm, echoed, len(text))

    def _as_in_vllm(self, token_id: int, scored: ScoredToken) -> orjson.Fragment:
        """The token of the prompt first, then the best ones."""
        entries = {str(token_id): self._entry(token_id, scored.logprob, scored.rank)}
        for rank, (other_id, logprob) in enumerate(scored.top[: self._report.prompt_top], 1):
            if other_id != token_id:
                entries[str(other_id)] = self._entry(other_id, logprob, rank)
        return orjson.Fragment(orjson.dumps(entries))

    def _entry(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": self._names.shown(token_id)}


@dataclass(frozen=True, slots=True)
class ReportedTokens:
    """Where the tokens of an answer go. `add_ids` takes those of a choice's next chunk; None: ids are not sent.
    `prompts` is there if log-probabilities of prompts are."""

    report: TokenReport
    add_ids: Callable[[int, list[int]], None] | None
    prompts: PromptRenderer | None
