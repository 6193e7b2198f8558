"""The bodies of `POST /v1/rerank` and `POST /v1/score`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from slipstream.router.api.openai.schema.fields import INT32_MAX, Label, Strict, field_error

MAX_DOCUMENTS = 2048
NonEmpty = Annotated[str, Field(min_length=1)]


class DocumentFields(Strict):
    text: NonEmpty


Document = Annotated[
    Annotated[NonEmpty, Tag("~string")] | Annotated[DocumentFields, Tag("~object")],
    Discriminator(lambda value: "~string" if isinstance(value, str) else "~object"),
]


class RerankRequest(Strict):
    """A query, and documents to be sorted by how well they answer it. `max_chunks_per_doc` and `max_tokens_per_doc` of
    Cohere's clients are taken and have no effect: what is too long for the model is cut."""

    model: Label
    query: NonEmpty
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    return_documents: bool | None = None
    max_chunks_per_doc: int | None = None
    max_tokens_per_doc: int | None = None
    user: Label | None = None

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


def one_or_many(value: Any) -> str:
    return "~string" if isinstance(value, str) else "~strings"


OneOrMany = Annotated[
    Annotated[NonEmpty, Tag("~string")]
    | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True), Tag("~strings")],
    Discriminator(one_or_many),
]


class ScoreRequest(Strict):
    """One text and others, or as many texts as others: what is compared with what."""

    model: Label
    text_1: OneOrMany
    text_2: OneOrMany
    user: Label | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        first, second = self._lists
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    @property
    def _lists(self) -> tuple[list[str], list[str]]:
        first, second = ([one] if isinstance(one, str) else one for one in (self.text_1, self.text_2))
        return first, second

    @model_validator(mode="after")
    def _lengths_fit(self) -> ScoreRequest:
        first, second = self._lists
        if len(first) not in (1, len(second)):
            raise field_error("text_1", f"has {len(first)} texts; one is needed, or {len(second)} as in `text_2`")
        return self
