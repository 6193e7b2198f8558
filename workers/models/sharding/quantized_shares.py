"""Whether a tensor-parallel rank's share of a quantised matrix is whole: it must not cut the runs of numbers that share
a scale or a word."""

from __future__ import annotations

from pathlib import Path

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.stored_quantization import CODES_PER_WORD, Fp8Stored, Stored
from slipstream.workers.models.sharding.rank_share import TensorPart


def columns_of(part: TensorPart) -> slice:
    """The columns of a matrix that a rank holds."""
    return slice(0, part.stored_shape[1]) if part.columns is None else part.columns


def reordered_sentence(model_dir: Path, name: str) -> str:
    """Why a tensor whose inputs are in an order of their own is refused."""
    return (
        f"{model_dir}: tensor {name} is quantised in activation order, so its inputs cannot be dealt out to"
        " tensor-parallel ranks"
    )


def check_share(model_dir: Path, part: TensorPart, stored: Stored) -> None:
    """Raises ModelError, naming the tensor, if the share cuts a block, group or word of codes."""
    num_rows, num_columns = part.stored_shape
    columns = columns_of(part)
    if isinstance(stored, Fp8Stored):
        if stored.block is not None:
            _check_aligned(model_dir, part, "rows", part.rows, stored.block[0], num_rows)
            _check_aligned(model_dir, part, "columns", columns, stored.block[1], num_columns)
        return
    group_size = num_columns if stored.group_size is None else stored.group_size
    if num_columns % group_size or num_rows % CODES_PER_WORD or num_columns % CODES_PER_WORD:
        raise ModelError(
            f"{model_dir}: tensor {part.name}: [{num_rows}, {num_columns}] does not come in groups"
            f" of {group_size} inputs and words of {CODES_PER_WORD} codes"
        )
    _check_aligned(model_dir, part, "rows", part.rows, CODES_PER_WORD, num_rows)
    own_columns = columns.stop - columns.start
    if own_columns > group_size or group_size % own_columns:
        _check_aligned(model_dir, part, "columns", columns, group_size, num_columns)
    _check_aligned(model_dir, part, "columns", columns, CODES_PER_WORD, num_columns)


def _check_aligned(model_dir: Path, part: TensorPart, what: str, share: slice, size: int, count: int) -> None:
    if share.start % size or (share.stop % size and share.stop != count):
        raise ModelError(
            f"{model_dir}: tensor {part.name}: a rank's {what} {share.start} to {share.stop} of"
            f" {count} cut a quantised run of {size}: a lower tensor parallel degree is needed"
        )
