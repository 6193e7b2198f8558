"""Fields that ask for an output of a certain form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from slipstream.router.api.openai.schema.fields import Label, Strict, Unserved, field_error
from slipstream.router.protocol.grammar import DEFAULT_JSON, JsonStyle

MAX_GUIDED_CHOICES = 1024

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
    whitespace: Literal["compact", "optional", "any"] | None = None
    open_objects: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    structural_tag: Unserved = None
    whitespace_pattern: Unserved = None

    @property
    def style(self) -> JsonStyle:
        return JsonStyle(self.whitespace or DEFAULT_JSON.whitespace, bool(self.open_objects))

    @model_validator(mode="after")
    def _fields_fit_together(self) -> StructuredOutputs:
        if self.disable_any_whitespace and self.whitespace == "any":
            raise field_error("whitespace", "differs from `disable_any_whitespace`; give one of them")
        if self.disable_additional_properties and self.open_objects:
            raise field_error("open_objects", "differs from `disable_additional_properties`; give one of them")
        return self
