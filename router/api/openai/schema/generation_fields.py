"""What the bodies of chat and plain completions have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from slipstream.router.api.openai.schema.fields import INT32_MAX, Label, Strict, field_error
from slipstream.router.api.openai.schema.sampling_fields import SamplingFields
from slipstream.router.api.openai.schema.structured_fields import Choices, JsonSchema, Pattern, ResponseFormat
from slipstream.router.api.openai.schema.vllm_fields import VllmFields
from slipstream.router.protocol.generation import Retention

MAX_CHOICES = 128


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: with `include_usage`, every chunk has it
    include_obfuscation: bool | None = None  # OpenAI pads chunks to equal lengths; here they are as long as their text


class GenerationFields(VllmFields, SamplingFields):
    """The fields that chat and plain completions have in common."""

    model: Label
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    response_format: ResponseFormat | None = None
    guided_json: JsonSchema | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    stream_options: StreamOptions | None = None

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
