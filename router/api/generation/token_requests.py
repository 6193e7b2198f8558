"""What a request wants to know of tokens, beside text: their ids, log-probabilities of its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.api.generation.answer.token_names import LogprobNames
from slipstream.router.api.generation.answer.token_report import NO_REPORT, PromptRenderer, ReportedTokens, TokenReport
from slipstream.router.api.openai.answer.formats import ChunkFormat
from slipstream.router.api.openai.body.sampling import invalid
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.text.detokenizer import PieceTable

MAX_PROMPT_ENTRIES = 1 << 20  # log-probabilities of the prompts of one answer: some 75 MB of JSON


def chat_report(body: ChatRequest, packed_ids: bytes) -> TokenReport:
    """Raises HttpError 400 if the answer would be too large."""
    if body.prompt_logprobs is None and not body.return_token_ids:
        return NO_REPORT
    report = TokenReport((packed_ids,), body.n or 1, bool(body.return_token_ids), body.prompt_logprobs)
    return _checked(report, "prompt_logprobs")


def completion_report(body: CompletionRequest, id_lists: Sequence[bytes]) -> TokenReport:
    """Raises HttpError 400 if the answer would be too large."""
    echo_top = body.logprobs if body.echo else None
    if body.prompt_logprobs is None and echo_top is None and not body.returns_token_ids:
        return NO_REPORT
    report = TokenReport(tuple(id_lists), body.n or 1, body.returns_token_ids, body.prompt_logprobs, echo_top)
    return _checked(report, "logprobs" if body.prompt_logprobs is None else "prompt_logprobs")


def _checked(report: TokenReport, param: str) -> TokenReport:
    if report.num_top is not None:
        num_tokens = sum(map(len, report.prompts)) // 4
        num_entries = num_tokens * (1 + report.num_top) * report.choices_per_prompt
        if num_entries > MAX_PROMPT_ENTRIES:
            message = (
                f"'{param}': with {report.num_top} best tokens beside each of {num_tokens} tokens, the answer would "
                f"have {num_entries} log-probabilities of prompts; there may be {MAX_PROMPT_ENTRIES}."
            )
            raise invalid(param, message)
    return report


def reported_tokens(
    report: TokenReport, form: ChunkFormat, names: LogprobNames, pieces: PieceTable, texts: Sequence[str] = ()
) -> ReportedTokens | None:
    """Where the tokens of an answer in this form go; None: their text is enough."""
    if report is NO_REPORT:
        return None
    prompts = PromptRenderer(report, names, pieces, texts) if report.num_top is not None else None
    return ReportedTokens(report, form.add_ids if report.returns_ids else None, prompts)
