"""The safetensors files of a model directory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slipstream.kernels.quantization.mxfp4 import from_mxfp4
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.stored_quantization import MXFP4_BLOCK
from slipstream.workers.models.directory.weight_files import weight_file_names
from slipstream.workers.models.sharding.rank_share import TensorPart

READABLE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The open, memory-mapped files. Only the parts that are asked for are read from disk."""

    model_dir: Path
    files: dict[str, Any]  # safe_open handle by file name
    file_of: dict[str, str]  # file name by tensor name

    def copy_into(self, out: Tensor, part: TensorPart) -> None:
        """Fills `out` with a part of a tensor, cast to its dtype. Raises ModelError if the tensor is missing, is not of
        floating point or has not the shape that the part asks for."""
        out.copy_(self.mapped(part))

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is no such tensor."""
        if name not in self.file_of:
            return None
        try:
            return tuple(self.files[self.file_of[name]].get_slice(name).get_shape())
        except SafetensorError as error:
            raise ModelError(f"{self.model_dir / self.file_of[name]}: tensor {name} cannot be read: {error}") from error

    def mapped(self, part: TensorPart, dtypes: Collection[torch.dtype] = READABLE_DTYPES) -> Tensor:
        """The part as it is stored, in one of `dtypes`: a view of the file, which nothing has read yet. A single number
        is [1]. Raises ModelError as `copy_into` does."""
        name = part.name
        if part.item is not None and f"{name}_blocks" in self.file_of:
            return self._from_blocks(part, part.item)
        if name not in self.file_of:
            raise ModelError(f"{self.model_dir}: tensor {name} is missing")
        path = self.model_dir / self.file_of[name]
        try:
            stored: Tensor = self.files[self.file_of[name]].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{path}: tensor {name} cannot be read: {error}") from error
        if stored.shape != part.stored_shape:
            raise ModelError(
                f"{path}: tensor {name} has shape {list(stored.shape)}, config.json asks for {list(part.stored_shape)}"
            )
        if stored.dtype not in dtypes:
            raise ModelError(f"{path}: tensor {name} has unsupported dtype {str(stored.dtype).removeprefix('torch.')}")
        if not part.stored_shape:
            return stored[None]
        if part.item is not None:
            stored = stored[part.item]
        if part.is_transposed:
            stored = stored.t()
        return stored[part.rows] if part.columns is None else stored[part.rows, part.columns]

    def _from_blocks(self, part: TensorPart, item: int) -> Tensor:
        """A part of a matrix of an MXFP4 stack, widened to bfloat16, which holds each number exactly."""
        count, outputs, inputs = part.stored_shape
        shape = (count, outputs, inputs // MXFP4_BLOCK)
        rows = slice(0, count)
        blocks = self.mapped(TensorPart(f"{part.name}_blocks", (*shape, MXFP4_BLOCK // 2), rows), (torch.uint8,))
        scales = self.mapped(TensorPart(f"{part.name}_scales", shape, rows), (torch.uint8,))
        widened = from_mxfp4(blocks[item, part.rows], scales[item, part.rows])
        return widened if part.columns is None else widened[:, part.columns]


@contextmanager
def open_checkpoint(model_dir: Path) -> Iterator[Checkpoint]:
    """Opens the files that hold the weights (see `weight_file_names`). Raises ModelError if a file is missing or
    damaged; a file shorter than its header says is found here, before anything is read."""
    with ExitStack() as stack:
        files = {file: _open(model_dir / file, stack) for file in weight_file_names(model_dir)}
        file_of = {name: file for file, handle in files.items() for name in handle.keys()}  # noqa: SIM118 - no mapping
        yield Checkpoint(model_dir, files, file_of)


def _open(path: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    except SafetensorError as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from error
