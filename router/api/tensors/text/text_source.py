"""The texts of a request for a model that takes token ids, or texts as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.router.api.tensors.models.endpoint_errors import invalid, misconfigured
from slipstream.router.api.tensors.models.model_caller import ModelCaller
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.text.endpoint_tokenizer import (
    EndpointTokenizer,
    EndpointTokenizers,
    Text,
    TokenRow,
    num_chars,
)
from slipstream.router.api.tensors.text.token_inputs import checked_length, length_limit, tokenizer_folder


@dataclass(frozen=True, slots=True)
class TextSource:
    """Tokenises the texts of one request; `param` is the field of the request that they come from. All methods raise
    HttpError. `tokenizer` None: there is none."""

    endpoint: str
    param: str
    tokenizer: EndpointTokenizer | None
    max_tokens: int | None
    truncate: bool

    @classmethod
    async def of(
        cls,
        tokenizers: EndpointTokenizers,
        model: ModelCaller,
        param: str,
        *,
        folder: str | None,
        max_tokens: int | None = None,
        truncate: bool = False,
    ) -> TextSource:
        """`folder` is that of the tokenizer; None: that of the model, if it has one."""
        found = tokenizer_folder(folder, model.spec)
        tokenizer = None
        if found is not None:
            try:
                tokenizer = await tokenizers.of(found)
            except (OSError, ValueError) as error:
                raise misconfigured(model.endpoint, f"its tokenizer cannot be used: {error}") from error
        return cls(model.endpoint, param, tokenizer, length_limit(max_tokens, tokenizer), truncate)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_id if self.tokenizer is not None else 0

    async def rows(self, texts: Sequence[Text]) -> list[TokenRow]:
        """The tokens of each text."""
        if self.tokenizer is None:
            raise misconfigured(self.endpoint, "it has no tokenizer, which its model needs")
        rows = await self._encoded(self.tokenizer, texts)
        if any(not row.ids for row in rows):
            raise invalid(self.param, "has a text without tokens")
        return rows

    def rows_of_ids(self, id_lists: Sequence[list[int]]) -> list[TokenRow]:
        """Token ids that the client has sent."""
        if self.tokenizer is not None:
            highest = max(max(ids) for ids in id_lists)
            if highest >= self.tokenizer.vocab_size:
                raise invalid(self.param, f"has the token id {highest}; there are {self.tokenizer.vocab_size}")
        return self._checked([TokenRow(ids, [0] * len(ids)) for ids in id_lists])

    async def count(self, texts: Sequence[Text]) -> int:
        """How many tokens texts have that the model gets as they are; 0 without a tokenizer."""
        if self.tokenizer is None:
            return 0
        return sum([len(row.ids) for row in await self._encoded(self.tokenizer, texts)])

    async def _encoded(self, tokenizer: EndpointTokenizer, texts: Sequence[Text]) -> list[TokenRow]:
        limit = self.max_tokens
        if limit is not None:
            max_chars = tokenizer.max_chars(limit)
            texts = [self._fitting(text, index, max_chars) for index, text in enumerate(texts)]
        return self._checked(await tokenizer.encode(texts))

    def _fitting(self, text: Text, index: int, max_chars: int) -> Text:
        """What is far too long is cut or refused before it takes the time and memory to be tokenised."""
        if num_chars(text) <= max_chars:
            return text
        if self.truncate:
            return text[:max_chars] if isinstance(text, str) else (text[0][:max_chars], text[1][:max_chars])
        what = f"has {num_chars(text)} characters at index {index}; this model takes at most {self.max_tokens} tokens"
        raise invalid(self.param, what)

    def _checked(self, rows: Sequence[TokenRow]) -> list[TokenRow]:
        try:
            return checked_length(rows, self.max_tokens, truncate=self.truncate)
        except ValueError as error:
            raise invalid(self.param, str(error)) from error


def text_array(texts: Sequence[str]) -> Array:
    """Texts as the elements of a tensor of BYTES."""
    elements = np.empty(len(texts), dtype=object)
    elements[:] = [text.encode() for text in texts]
    return elements
