"""The inputs of a model that takes token ids, as Hugging Face's encoders do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.router.api.tensors.models.endpoint_errors import misconfigured
from slipstream.router.api.tensors.models.model_tensors import WHOLE, ModelTensors
from slipstream.router.api.tensors.models.row_layout import RowLayout
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.text.endpoint_tokenizer import EndpointTokenizer, TokenRow
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec

ROW_AXES = 1  # of one text: its tokens
MAX_FILLED_TOKENS = 1 << 20  # of one call, filled up; a single text may have more


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """`mask` and `types` are there if the model has them."""

    ids: TensorSpec
    mask: TensorSpec | None
    types: TensorSpec | None

    @classmethod
    def of(cls, tensors: ModelTensors) -> TokenInputs | None:
        """None: the model takes no token ids. Raises HttpError."""
        ids = tensors.input_of("input_ids")
        if ids is None or "text" in tensors.configured:
            return None
        if ids.datatype not in WHOLE:
            problem = f"inputs.input_ids, {ids.name!r}, must be whole numbers, not {ids.datatype}"
            raise misconfigured(tensors.endpoint, problem)
        return cls(ids, tensors.input_of("attention_mask"), tensors.input_of("token_type_ids"))

    def arrays(self, rows: Sequence[TokenRow], pad_id: int, layout: RowLayout) -> tuple[dict[str, Array], Array]:
        """The inputs for these rows, filled up to the longest, and where their tokens are [rows, tokens]."""
        longest = max(len(row.ids) for row in rows)
        ids = np.full((len(rows), longest), pad_id, np.int64)
        types = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for index, row in enumerate(rows):
            num_tokens = len(row.ids)
            ids[index, :num_tokens] = row.ids
            types[index, :num_tokens] = row.type_ids
            mask[index, :num_tokens] = 1
        given = {self.ids.name: layout.placed(self.ids, ids)}
        for tensor, array in ((self.mask, mask), (self.types, types)):
            if tensor is not None:
                given[tensor.name] = layout.placed(tensor, array)
        return given, mask


def spans_of(rows: Sequence[TokenRow], most: int) -> list[tuple[int, int]]:
    """Where the rows of each call begin and end: at most so many, and so few that one long text among short ones does
    not make all of them large."""
    spans, begin, longest = [], 0, 0
    for index, row in enumerate(rows):
        num_rows, longest = index - begin + 1, max(longest, len(row.ids))
        if index > begin and (num_rows > most or num_rows * longest > MAX_FILLED_TOKENS):
            spans.append((begin, index))
            begin, longest = index, len(row.ids)
    return [*spans, (begin, len(rows))]


def tokenizer_folder(configured: str | None, spec: ModelSpec) -> Path | None:
    """Where the tokenizer of an endpoint is: as configured, or in the folder of the model's version, or of the model.
    None: nowhere."""
    if configured is not None:
        return Path(configured)
    folders = (spec.folder / spec.version, spec.folder)
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def checked_length(rows: Sequence[TokenRow], limit: int | None, *, truncate: bool) -> list[TokenRow]:
    """Raises ValueError for a row of more tokens than the limit, unless such rows are to be cut."""
    if limit is None:
        return list(rows)
    for index, row in enumerate(rows):
        if len(row.ids) > limit and not truncate:
            raise ValueError(f"has {len(row.ids)} tokens at index {index}; this model takes at most {limit}")
    return [row.cut(limit) for row in rows]


def length_limit(configured: int | None, tokenizer: EndpointTokenizer | None) -> int | None:
    stated = tokenizer.max_tokens if tokenizer is not None else None
    return configured if configured is not None else stated
