"""Fields that chat, plain completions and responses have in common: how an output is drawn, and where it ends."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from slipstream.router.api.openai.schema.fields import (
    INT32_MAX,
    FiniteFloat,
    Label,
    StopString,
    TokenId,
    as_list,
    at_most,
)
from slipstream.router.api.openai.schema.serving_fields import ServingFields
from slipstream.router.api.openai.schema.structured_fields import StructuredOutputs

MAX_STOPS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_METADATA = 16
MAX_RETENTION_S = 86_400

Metadata = Annotated[dict[str, Label], at_most(MAX_METADATA)]


class SamplingFields(ServingFields):
    """How an output is drawn, and where it ends."""

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
    stop: Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(as_list)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    retention_s: Annotated[FiniteFloat, Field(gt=0, le=MAX_RETENTION_S)] | None = None
    explain: bool | None = None
    user: Label | None = None
    metadata: Metadata | None = None
