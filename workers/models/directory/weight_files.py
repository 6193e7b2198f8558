"""Which files hold a model's weights, and what their headers say is in them. No weights are read, and no torch.

`model.safetensors` counts first, and then `model.safetensors.index.json`: the order of transformers 5
(`_get_resolved_checkpoint_files`). Of an index only the names of the files matter; which tensors they hold is in their
headers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.router.model_files.json_file import is_there, why_no_file
from slipstream.workers.models.directory.json_keys import ModelError, NotNativeError, read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLED_FILE = "pytorch_model.bin"
PICKLED_INDEX_FILE = "pytorch_model.bin.index.json"
ADAPTER_FILE = "adapter_config.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
}
FLOATS = ("F64", "F32", "BF16", "F16")
LOADED = (*BITS, "F4", "F6_E2M3", "F6_E3M2", "C64")  # by the safetensors library
# Weights in forms that are not read, and what to do about each.
OTHER_FORMS = (
    ("pytorch_model*.bin", "convert it to safetensors (`save_pretrained` of transformers does)"),
    ("consolidated*", "it is in Mistral's or Meta's own layout; take the directory in Hugging Face layout"),
    ("*.gguf", "take the directory in Hugging Face layout"),
    ("adapter_model.*", "merge the adapter into its base model"),
    ("*.safetensors", f"only {SINGLE_FILE}, or what {INDEX_FILE} names, is read"),
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor by the header of its file. `dtype` is safetensors' name (F32, BF16 ...); its bytes are at `begin` up to
    `end` of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightFiles:
    model_dir: Path
    files: tuple[str, ...]
    tensors: dict[str, StoredTensor]

    @staticmethod
    def read(model_dir: Path) -> WeightFiles:
        """Reads the headers. Raises ModelError if files are missing, truncated or damaged, or if two hold the same
        tensor."""
        files = weight_file_names(model_dir)
        tensors: dict[str, StoredTensor] = {}
        for file in files:
            for name, tensor in _header(model_dir / file):
                other = tensors.setdefault(name, tensor)
                if other is not tensor:
                    raise ModelError(f"{model_dir}: tensor {name} is in two files, {other.file} and {file}")
        return WeightFiles(model_dir, files, tensors)

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.end - tensor.begin for tensor in self.tensors.values())

    def content(self, name: str) -> bytes:
        """The bytes of a tensor, which is to be a small one."""
        tensor = self.tensors[name]
        with (self.model_dir / tensor.file).open("rb") as file:
            file.seek(tensor.begin)
            return file.read(tensor.end - tensor.begin)


def check_not_pickled(model_dir: Path) -> None:
    """Raises NotNativeError if the weights are in PyTorch's own form only, which transformers reads."""
    if pickled_file_names(model_dir):
        raise NotNativeError(f"{model_dir} has its weights as {PICKLED_FILE}, not as {SINGLE_FILE}")


def pickled_file_names(model_dir: Path) -> tuple[str, ...]:
    """The files of weights in PyTorch's own form, where there are no others; () if there are. Raises ModelError."""
    if any(is_there(model_dir / name) for name in (SINGLE_FILE, INDEX_FILE)):
        return ()
    if is_there(model_dir / PICKLED_FILE):
        _check_file(model_dir / PICKLED_FILE)
        return (PICKLED_FILE,)
    return _checked_shards(model_dir / PICKLED_INDEX_FILE) if is_there(model_dir / PICKLED_INDEX_FILE) else ()


def weight_file_names(model_dir: Path) -> tuple[str, ...]:
    """The names of the safetensors files that hold the weights. Raises ModelError, naming what is there instead, if
    there are none."""
    adapter = model_dir / ADAPTER_FILE
    if is_there(adapter):
        raise ModelError(f"{adapter}: an adapter cannot be served; merge it into its base model and remove this file")
    if is_there(model_dir / SINGLE_FILE):
        _check_file(model_dir / SINGLE_FILE)
        return (SINGLE_FILE,)
    if is_there(model_dir / INDEX_FILE):
        return _checked_shards(model_dir / INDEX_FILE)
    for pattern, advice in OTHER_FORMS:
        if found := sorted(model_dir.glob(pattern)):
            raise ModelError(f"{model_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}, only {found[0].name}: {advice}")
    raise ModelError(f"{model_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def _check_file(path: Path) -> None:
    if (problem := why_no_file(path)) is not None:
        raise ModelError(f"{path} {problem}")


def _checked_shards(index: Path) -> tuple[str, ...]:
    """The files that an index names. Raises ModelError if one is not there."""
    files = _indexed_files(index)
    for file in files:
        if (problem := why_no_file(index.parent / file)) is not None:
            raise ModelError(f"{index.parent / file} {problem}, though {index.name} names it")
    return files


def _indexed_files(index: Path) -> tuple[str, ...]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: weight_map: must name the file of each tensor")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelError(f"{index}: weight_map.{name}: must be a file name, got {file!r}")
    return tuple(sorted(set(weight_map.values())))


def _header(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of a file: a u64 little-endian length, a JSON header of that length, then the bytes of all
    tensors."""
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if num_bytes < 8 or header_bytes > min(num_bytes - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{path} is truncated or no safetensors file ({num_bytes} bytes)")
            header = json.loads(file.read(header_bytes))
        tensors = [
            (name, _stored_tensor(path.name, 8 + header_bytes, keys))
            for name, keys in header.items()
            if name != "__metadata__"
        ]
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except ModelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ModelError(f"{path} is no safetensors file: its header cannot be read") from error
    expected = max((tensor.end for _, tensor in tensors), default=8 + header_bytes)
    if num_bytes < expected:
        raise ModelError(f"{path} is truncated: {num_bytes} bytes of {expected}")
    if num_bytes > expected:
        raise ModelError(f"{path} is damaged: {num_bytes - expected} bytes after its last tensor")
    end = 8 + header_bytes
    for name, tensor in sorted(tensors, key=lambda one: (one[1].begin, one[1].end)):
        if tensor.begin != end:
            raise ModelError(f"{path} is damaged: tensor {name} does not begin where the one before it ends")
        end = tensor.end
    yield from tensors


def _stored_tensor(file: str, data_start: int, keys: dict[str, Any]) -> StoredTensor:
    """Raises ValueError, TypeError, KeyError or OverflowError if `keys` do not describe a tensor."""
    dtype, shape, (begin, end) = str(keys["dtype"]), tuple(map(int, keys["shape"])), keys["data_offsets"]
    if type(begin) is not int or type(end) is not int:
        raise TypeError(f"{begin!r} and {end!r} are no offsets")
    bits = BITS.get(dtype)
    if bits is not None and (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"{end - begin} bytes are not a {dtype} tensor of {shape}")
    return StoredTensor(file, dtype, shape, data_start + begin, data_start + end)
