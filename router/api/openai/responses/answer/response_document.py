"""The JSON object of a response, which repeats what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage
from slipstream.router.api.openai.responses.body.request_body import ResponsesRequest
from slipstream.router.api.openai.responses.body.tool_fields import HostedTool, ToolChoice
from slipstream.router.model_files.sampling_defaults import SamplingDefaults

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Json = dict[str, Any]


class ResponseEnd(NamedTuple):
    """How a response ended. `error` has OpenAI's `code` and `message`."""

    status: ResponseStatus
    usage: TokenUsage | None = None
    completed_s: int | None = None
    error: Json | None = None
    incomplete_reason: str | None = None


class ResponseDocument:
    """Of one request. `is_stored` says whether the response can be retrieved."""

    def __init__(self, body: ResponsesRequest, head: AnswerHead, defaults: SamplingDefaults, is_stored: bool) -> None:
        self._body = body
        self._head = head
        self._defaults = defaults
        self.is_stored = is_stored

    def at_begin(self, status: ResponseStatus = "in_progress") -> Json:
        return self._document(ResponseEnd(status), [])

    def at_end(self, end: ResponseEnd, output: Sequence[Json]) -> Json:
        return self._document(end, output)

    def _document(self, end: ResponseEnd, output: Sequence[Json]) -> Json:
        body, head = self._body, self._head
        document: Json = {
            "id": head.id,
            "object": "response",
            "created_at": head.created_s,
            "status": end.status,
            "background": bool(body.background),
            "completed_at": end.completed_s,
            "error": end.error,
            "incomplete_details": {"reason": end.incomplete_reason} if end.incomplete_reason else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": head.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": reasoning_json(body),
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": self.is_stored,
            "temperature": self._defaults.temperature if body.temperature is None else body.temperature,
            "text": text_json(body),
            "tool_choice": tool_choice_json(body.tool_choice),
            "tools": [tool.as_json() for tool in body.tools or () if not isinstance(tool, HostedTool)],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self._defaults.top_p if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": usage_json(end.usage) if end.usage is not None else None,
            "metadata": body.metadata or {},
        }
        if body.conversation_id is not None:
            document["conversation"] = {"id": body.conversation_id}
        if body.user is not None:
            document["user"] = body.user
        if document["usage"] is None:
            del document["usage"]  # OpenAI's document has no null for it
        return document


def usage_json(usage: TokenUsage) -> Json:
    """Tokens that are written to a cache are not counted apart from others: all of a prompt are."""
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens or 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }


def reasoning_json(body: ResponsesRequest) -> Json:
    """What was asked for."""
    effort = body.reasoning.effort if body.reasoning is not None else None
    return {"effort": effort, "summary": body.summary_kind}


def text_json(body: ResponsesRequest) -> Json:
    text = body.text
    form = text.format.as_json() if text is not None and text.format is not None else {"type": "text"}
    return {"format": form, "verbosity": (text.verbosity if text is not None else None) or "medium"}


def tool_choice_json(choice: str | ToolChoice | None) -> Any:
    if isinstance(choice, ToolChoice):
        return choice.model_dump(exclude_unset=True)
    return choice or "auto"
