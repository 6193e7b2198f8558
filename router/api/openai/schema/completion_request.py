"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from slipstream.router.api.openai.schema.fields import INT32_MAX, TokenId, field_error, only
from slipstream.router.api.openai.schema.generation_fields import MAX_CHOICES, GenerationFields
from slipstream.router.api.openai.schema.vllm_fields import MAX_LOGPROBS, CompletionVllmFields

MAX_PROMPTS = 1024


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
