"""The body of `POST /v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from slipstream.router.api.openai.schema.completion_request import TokenIds, prompt_kind
from slipstream.router.api.openai.schema.fields import INT32_MAX, Label, Strict

MAX_INPUTS = 2048
NonEmpty = Annotated[str, Field(min_length=1)]


class EmbeddingsRequest(Strict):
    """Texts, or the token ids of texts."""

    model: Label
    input: Annotated[
        Annotated[NonEmpty, Tag("~string")]
        | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("~strings")]
        | Annotated[TokenIds, Tag("~ids")]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("~id_lists")],
        Discriminator(prompt_kind),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    user: Label | None = None

    @property
    def texts(self) -> list[str]:
        """The inputs if they are texts, else empty."""
        given: Any = self.input
        texts = [given] if isinstance(given, str) else given
        return texts if isinstance(texts[0], str) else []

    @property
    def id_lists(self) -> list[list[int]]:
        """The inputs if they are token ids, else empty."""
        given: Any = self.input
        if isinstance(given[0], str):
            return []
        return [given] if isinstance(given[0], int) else given
