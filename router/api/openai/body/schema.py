"""The request bodies of the OpenAI API as strict types: nothing is coerced. `parsing` says what becomes of fields that
are not listed here.

A field that would change the answer, and is not supported yet, is listed here, but accepted only with a value that asks
for nothing. Fields that only hint are accepted with each value that OpenAI's API gives them, even where they have no
effect: `user`, `metadata`, `safety_identifier`, `prompt_cache_key`, `prompt_cache_retention`, `service_tier`, `store`,
`prediction`, `include_obfuscation`, and without tools `tool_choice` "none" and "auto" and `parallel_tool_calls`.

Checking a body holds up the event loop, so large bodies must fail fast: the check of a list ends at its first bad item,
and sizes are checked before contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from slipstream.router.api.openai.body.fields import (
    INT32_MAX,
    FiniteFloat,
    Label,
    StopString,
    Strict,
    TokenId,
    Unserved,
    as_list,
    at_most,
    field_error,
    only,
)
from slipstream.router.api.openai.body.messages import ChatMessage, not_too_many_parts
from slipstream.router.api.openai.body.tools import (
    MAX_TOOLS,
    FunctionCallField,
    FunctionFields,
    ToolChoiceField,
    ToolFields,
    ToolUse,
    check_use,
    legacy_use_of,
    needs_tools,
    not_both,
    use_of,
)
from slipstream.router.api.openai.body.vllm_fields import (
    MAX_LOGPROBS,
    ChatVllmFields,
    CompletionVllmFields,
    VllmFields,
)
from slipstream.router.protocol.generation import Retention, Slo
from slipstream.router.protocol.grammar import JsonStyle

MAX_STOPS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_METADATA = 16
MAX_GUIDED_CHOICES = 1024
MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_MILLISECONDS = 86_400_000
MAX_TIMEOUT_S = 86_400
MAX_RETENTION_S = 86_400
MAY_COME_BACK = Retention()
NO_SLO = Slo()
CHOICES_WITHOUT_TOOLS = ("none", "auto", None)  # OpenAI refuses them; clients send them all the same
TOOL_FIELDS = frozenset({"tools", "tool_choice", "functions", "function_call"})
NO_VARIABLES: Mapping[str, Any] = {}
THINKING_OFF = {"enable_thinking": False, "thinking": False}  # of Qwen's templates; of DeepSeek's and Granite's


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: with `include_usage`, every chunk has it
    include_obfuscation: bool | None = None  # OpenAI pads chunks to equal lengths; here they are as long as their text


class SloFields(Strict):
    """The service level that the client asks for, in milliseconds. With `strict`, it wants to be refused at once if the
    first token cannot come in time."""

    ttft_ms: Annotated[FiniteFloat, Field(gt=0, le=MAX_MILLISECONDS)] | None = None
    itl_ms: Annotated[FiniteFloat, Field(gt=0, le=MAX_MILLISECONDS)] | None = None
    strict: bool | None = None


SchemaFields = dict[str, Any]
JsonSchema = Annotated[
    Annotated[str, Tag("~string")] | Annotated[SchemaFields, Tag("~object")],
    Discriminator(lambda value: "~string" if isinstance(value, str) else "~object"),
]
Pattern = Annotated[str, Field(min_length=1)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_GUIDED_CHOICES, fail_fast=True)
]


class NamedSchema(Strict):
    """A named JSON schema. `strict` makes no difference: output always follows the schema."""

    name: Label
    description: str | None = None
    schema_: Annotated[SchemaFields, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _a_schema_where_one_is_meant(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise field_error("json_schema", "is required")
        if self.type != "json_schema" and self.json_schema is not None:
            raise field_error("json_schema", "is only allowed where `type` is json_schema")
        return self


class StructuredOutputs(Strict):
    """vLLM's field for structured output. `whitespace` and `open_objects` are for JSON schemas, also for those in other
    fields; vLLM's `disable_...` ask for what is the default here."""

    json_: Annotated[JsonSchema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    whitespace: Literal["compact", "any"] | None = None
    open_objects: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    structural_tag: Unserved = None
    whitespace_pattern: Unserved = None

    @property
    def style(self) -> JsonStyle:
        return JsonStyle(self.whitespace or "compact", bool(self.open_objects))

    @model_validator(mode="after")
    def _fields_fit_together(self) -> StructuredOutputs:
        if self.disable_any_whitespace and self.whitespace == "any":
            raise field_error("whitespace", "differs from `disable_any_whitespace`; give one of them")
        if self.disable_additional_properties and self.open_objects:
            raise field_error("open_objects", "differs from `disable_additional_properties`; give one of them")
        return self


class GenerationFields(VllmFields):
    """The fields that chat and plain completions have in common."""

    model: Label
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[FiniteFloat, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[FiniteFloat, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[FiniteFloat, Field(gt=0, le=100)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[FiniteFloat, Field(ge=-100, le=100)]], at_most(MAX_LOGIT_BIASES)] | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(as_list)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    cache_salt: Label | None = None
    session_id: Label | None = None
    retention_s: Annotated[FiniteFloat, Field(gt=0, le=MAX_RETENTION_S)] | None = None
    slo: SloFields | None = None
    expected_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    timeout_s: Annotated[FiniteFloat, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    explain: bool | None = None
    user: Label | None = None
    metadata: Annotated[dict[str, Label], at_most(MAX_METADATA)] | None = None

    @property
    def stated_max_tokens(self) -> int | None:
        """The limit for the output that was asked for; None: as much as there is room for."""
        return self.max_tokens

    @property
    def detokenizes(self) -> bool:
        """Whether outputs are made text."""
        return True

    @property
    def candidates_per_prompt(self) -> int:
        """How many outputs each prompt gets, of which the best `n` are the answer."""
        return self.n or 1

    @property
    def cache_key(self) -> str:
        """What requests have in common that may find each other's KV; "" if the body has none."""
        return ""

    @property
    def retention(self) -> Retention | None:
        """What speaks for keeping its KV after its end."""
        return Retention(self.retention_s) if self.retention_s is not None else None

    @property
    def served_tier(self) -> str:
        """The service tier to name in the answer: empty unless the request names one."""
        return ""

    @property
    def service_level(self) -> Slo:
        """The one that was asked for, in seconds."""
        if self.slo is None:
            return NO_SLO
        ttft_ms, itl_ms = self.slo.ttft_ms, self.slo.itl_ms
        return Slo(ttft_ms and ttft_ms / 1e3, itl_ms and itl_ms / 1e3, bool(self.slo.strict))

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with the usage, which is sent only on request."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_so_far(self) -> bool:
        """Whether every chunk is to carry the usage so far, as in vLLM."""
        return self.wants_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @model_validator(mode="after")
    def _fields_go_with_a_stream_or_without_one(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "is only allowed when `stream` is true")
        if self.prompt_logprobs is not None and self.stream:  # as in vLLM
            raise field_error("prompt_logprobs", f"is {self.prompt_logprobs}; it is not available in a stream")
        return self


class ChatRequest(ChatVllmFields, GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True), BeforeValidator(not_too_many_parts)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    tools: Annotated[list[ToolFields], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoiceField | None = None
    functions: Annotated[list[FunctionFields], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    function_call: FunctionCallField | None = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Unserved = None
    web_search_options: Unserved = None

    @property
    def stated_max_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def cache_key(self) -> str:
        return self.prompt_cache_key or ""

    @property
    def retention(self) -> Retention | None:
        if self.retention_s is not None:
            return Retention(self.retention_s)
        return MAY_COME_BACK if self.tool_use is not None or self.session_id else None

    @property
    def served_tier(self) -> str:
        return "default" if self.service_tier is not None else ""

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """The variables for the chat template. Besides `chat_template_kwargs` they have the `reasoning_effort`, as in
        vLLM; "none" turns thinking off where a template can do that, as in SGLang."""
        given = self.chat_template_kwargs or NO_VARIABLES
        if self.reasoning_effort is None and self.verbosity is None and self.enable_thinking is None:
            return given
        variables: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            variables["reasoning_effort"] = self.reasoning_effort
            variables |= THINKING_OFF if self.reasoning_effort == "none" else NO_VARIABLES
        if self.verbosity is not None:
            variables["verbosity"] = self.verbosity
        if self.enable_thinking is not None:
            variables |= dict.fromkeys(THINKING_OFF, self.enable_thinking)
        return {**variables, **given}

    @property
    def continued(self) -> str:
        """The text of the last message, if the answer is to go on with it."""
        if not self.continue_final_message:
            return ""
        content = self.messages[-1].content
        return content if isinstance(content, str) else "".join([part.text for part in content or ()])

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """The tools, and what may be done with them; None: there are none."""
        if self.functions:
            return legacy_use_of(self.functions, self.function_call)
        return use_of(self.tools, self.tool_choice, self.parallel_tool_calls is not False)

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatRequest:
        if not self.model_fields_set.isdisjoint(TOOL_FIELDS):
            self._check_tools()
        if self.continue_final_message or self.add_generation_prompt is False:
            self._check_continued()
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", f"is {self.top_logprobs}, which needs `logprobs` to be true")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise field_error(
                "max_tokens",
                f"is {self.max_tokens}, which differs from `max_completion_tokens`, {self.max_completion_tokens}; give "
                "one of them",
            )
        return self

    def _check_continued(self) -> None:
        if not self.continue_final_message:
            raise field_error("add_generation_prompt", "may only be false where `continue_final_message` is true")
        if self.add_generation_prompt:
            raise field_error("add_generation_prompt", "is true, which excludes `continue_final_message`")
        last = self.messages[-1]
        if last.role != "assistant" or last.tool_calls or last.function_call is not None or not self.continued:
            raise field_error("continue_final_message", "needs a last message of the role 'assistant' that has text")

    def _check_tools(self) -> None:
        if self.functions and self.tools:
            raise not_both("functions", "tools", self.functions)
        if not self.tools and self.tool_choice not in CHOICES_WITHOUT_TOOLS:
            raise needs_tools("tool_choice", "tools")
        if not self.functions and self.function_call not in CHOICES_WITHOUT_TOOLS:
            raise needs_tools("function_call", "functions")
        use = self.tool_use
        if use is not None:
            check_use(use)


def prompt_kind(value: Any) -> str:
    """Which of the four forms of a prompt this is, or most resembles if it is none."""
    if not isinstance(value, list):
        return "~string"
    first = value[0] if value else None
    return "~ids" if isinstance(first, int | float) else "~id_lists" if isinstance(first, list) else "~strings"


TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class CompletionRequest(CompletionVllmFields, GenerationFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        Annotated[str, Tag("~string")]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("~strings")]
        | Annotated[TokenIds, Tag("~ids")]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("~id_lists")],
        Discriminator(prompt_kind),
    ]
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    detokenize: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Annotated[Any, only("")] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> CompletionRequest:
        num_wanted = self.n or 1
        if self.best_of is not None and self.best_of < num_wanted:
            raise field_error("best_of", f"is {self.best_of}, less than `n`, {num_wanted}")
        if self.stream and self.candidates_per_prompt > num_wanted:
            message = f"is {self.best_of}, more than `n`, {num_wanted}"
            raise field_error(
                "best_of", f"{message}: which are the best is known only at the end of all, not in a stream"
            )
        if self.echo and self.logprobs is not None and self.stream:
            raise field_error("echo", "is not available together with `logprobs` in a stream")
        if self.max_tokens == 0:
            self._check_prompt_only()
        if self.detokenize is False:
            self._check_tokens_only()
        if self.num_prompts * self.candidates_per_prompt > MAX_PROMPTS:
            field, number = "n" if self.best_of is None else "best_of", self.candidates_per_prompt
            raise field_error(
                field, f"is {number}; times the {self.num_prompts} prompts, that is more than {MAX_PROMPTS}"
            )
        return self

    def _check_prompt_only(self) -> None:
        if not (self.echo or self.returns_token_ids or self.prompt_logprobs is not None):
            wanted = "`echo`, `prompt_logprobs` or `return_token_ids`"
            raise field_error("max_tokens", f"is 0, which leaves nothing to answer without {wanted}")
        if self.candidates_per_prompt > 1:
            field = "n" if self.best_of is None else "best_of"
            raise field_error(field, f"is {self.candidates_per_prompt}, and `max_tokens` is 0: there are no choices")

    def _check_tokens_only(self) -> None:
        for field, value in (("echo", self.echo), ("stop", self.stop)):
            if value:
                raise field_error(field, "is about text, and `detokenize` is false")

    @property
    def detokenizes(self) -> bool:
        return self.detokenize is not False

    @property
    def returns_token_ids(self) -> bool:
        """An answer without text consists of them."""
        return bool(self.return_token_ids) or not self.detokenizes

    @property
    def candidates_per_prompt(self) -> int:
        return self.best_of or self.n or 1

    @property
    def texts(self) -> list[str]:
        """The prompts if they are texts, else empty."""
        prompt: Any = self.prompt
        texts = [prompt] if isinstance(prompt, str) else prompt
        return texts if isinstance(texts[0], str) else []

    @property
    def id_lists(self) -> list[list[int]]:
        """The prompts if they are token ids, else empty."""
        prompt: Any = self.prompt
        if isinstance(prompt, str):
            return []
        id_lists = [prompt] if isinstance(prompt[0], int) else prompt
        return id_lists if isinstance(id_lists[0], list) else []

    @property
    def num_prompts(self) -> int:
        return len(self.texts) or len(self.id_lists)
