"""The body of `POST /v1/images/generations`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slipstream.router.api.openai.schema.fields import INT32_MAX, FiniteFloat, Label, Strict, field_error, only

MAX_PROMPT_CHARS = 32_000
Prompt = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]


class ImagesRequest(Strict):
    """OpenAI's fields, and those that servers of diffusion models have besides: `negative_prompt`, `seed`, `steps` (or
    `num_inference_steps`) and `guidance_scale`."""

    model: Label
    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
    n: Annotated[int, Field(ge=1, le=100)] | None = None
    size: Label | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "webp", "jpeg"] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    negative_prompt: Prompt | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    steps: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    guidance_scale: FiniteFloat | None = None
    quality: Annotated[Any, only("auto", "standard")] = None
    style: Annotated[Any, only("vivid", "natural")] = None
    background: Annotated[Any, only("auto", "opaque")] = None
    moderation: Annotated[Any, only("auto", "low")] = None
    stream: Annotated[Any, only(False)] = None
    partial_images: Annotated[Any, only(0)] = None
    user: Label | None = None

    @model_validator(mode="after")
    def _compression_fits_the_format(self) -> ImagesRequest:
        if self.output_compression is not None and self.output_format in (None, "png"):
            raise field_error("output_compression", "is only allowed with the `output_format` webp or jpeg")
        return self

    @property
    def num_steps(self) -> int | None:
        return self.steps or self.num_inference_steps
