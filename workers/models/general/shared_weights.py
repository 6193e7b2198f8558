"""Weights of a general model that all workers of a host share.

transformers maps safetensors files, and parameters that it takes as they are stored are views of them. What it
converts (experts that are stored one by one, another dtype, quantised weights) would be a copy in each worker. So the
first worker writes all tensors of such a model into a file of the weight cache, and all workers map that.

    u64 length | JSON: a list of tensors | tensor, at a multiple of 64 bytes | tensor | ...
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.general.pretrained import (
    empty_model,
    load_pretrained,
    read_config,
    transformers_version,
)
from slipstream.workers.models.general.quantized import stays_quantized
from slipstream.workers.models.weights.weight_cache import Bytes, cached, known, loading

log = logging.getLogger(__name__)

ALIGNMENT = 64
MIN_SHARED_BYTES = 1 << 20  # less than that is not worth a file


class _Placed(NamedTuple):
    """A tensor of the file; `begin` counts from the first one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int


def load_shared(
    model_dir: Path, dtype: torch.dtype, trust_remote_code: bool, directory: Path | None, files: SteadyFiles | None
) -> PreTrainedModel:
    """The model, with weights that are views of files as far as possible. `directory` is that of the weight cache;
    None: there is none. Raises ModelError, and FilesChanged if the files are exchanged while they are converted."""
    if directory is None or stays_quantized(read_config(model_dir, trust_remote_code)):
        return load_pretrained(model_dir, dtype, trust_remote_code)
    files = SteadyFiles.of(model_dir) if files is None else files
    key = _key(model_dir, dtype, files)
    with loading(directory, key):
        contents = known(directory, key)
        if contents is not None:
            return _with_weights(model_dir, dtype, trust_remote_code, _tensors_of(contents))
        model = load_pretrained(model_dir, dtype, trust_remote_code)
        if private_bytes(model) < MIN_SHARED_BYTES:
            return model
        num_bytes, fill = _written(dict(model.state_dict()), files)
        contents = cached(directory, key, num_bytes, fill)
        return _with_weights(model_dir, dtype, trust_remote_code, _tensors_of(contents))


def private_bytes(model: PreTrainedModel) -> int:
    """How much of the weights is memory of this process alone, and no view of a file."""
    regions = _mapped_files()
    memory: dict[int, int] = {}
    for tensor in model.state_dict().values():
        begin = tensor.data_ptr()
        if tensor.device.type == "cpu" and not any(first <= begin < end for first, end in regions):
            memory[begin] = tensor.numel() * tensor.element_size()
    return sum(memory.values())


def _mapped_files() -> list[tuple[int, int]]:
    """The addresses at which files are mapped into this process."""
    regions = []
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        fields = line.split(None, 5)  # addresses, rights, offset, device, inode, path
        if len(fields) == 6 and fields[5].startswith("/"):
            first, _, end = fields[0].partition("-")
            regions.append((int(first, 16), int(end, 16)))
    return regions


def _key(model_dir: Path, dtype: torch.dtype, files: SteadyFiles) -> bytes:
    digest = hashlib.sha256(b"general weights 1")
    code = (path.read_bytes() for path in sorted(model_dir.glob("*.py")))
    versions = f"{transformers_version()} {torch.__version__} {dtype}"
    for part in (files.weights_key.encode(), (model_dir / CONFIG_FILE).read_bytes(), versions.encode(), *code):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _written(tensors: dict[str, Tensor], files: SteadyFiles) -> tuple[int, Callable[[Bytes], None]]:
    """The size of the contents, and what writes them, which raises FilesChanged if `files` are others by then. Tensors
    that are one memory are written once."""
    placed: list[_Placed] = []
    begins: dict[tuple[int, int], int] = {}  # by address and size
    end = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        own = (tensor.data_ptr(), num_bytes)
        if own not in begins:
            begins[own] = end
            end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        placed.append(_Placed(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), begins[own]))
    header = json.dumps(placed).encode()
    start = _start(len(header))

    def fill(contents: Bytes) -> None:
        contents[:8] = np.frombuffer(len(header).to_bytes(8, "little"), np.uint8)
        contents[8 : 8 + len(header)] = np.frombuffer(header, np.uint8)
        for place in placed:
            raw = tensors[place.name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            contents[start + place.begin : start + place.begin + len(raw)] = raw
        files.check()

    return start + end, fill


def _tensors_of(contents: Bytes) -> dict[str, Tensor]:
    """Views of the contents, by name. They must not be written to."""
    num_bytes = int.from_bytes(contents[:8].tobytes(), "little")
    start = _start(num_bytes)
    tensors = {}
    for name, dtype_name, shape, begin in json.loads(contents[8 : 8 + num_bytes].tobytes()):
        dtype = getattr(torch, dtype_name)
        end = start + begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the memory is read-only
            tensors[name] = torch.from_numpy(contents[start + begin : end]).view(dtype).reshape(shape)
    return tensors


def _start(header_bytes: int) -> int:
    """Where the first tensor begins."""
    return -(-(8 + header_bytes) // ALIGNMENT) * ALIGNMENT


def _with_weights(
    model_dir: Path, dtype: torch.dtype, trust_remote_code: bool, tensors: dict[str, Tensor]
) -> PreTrainedModel:
    """The model with these weights, which are not copied. Raises ModelError if they are not all there."""
    config = read_config(model_dir, trust_remote_code)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # they have been widened
    made = type(empty_model(config, dtype, "meta", trust_remote_code))
    try:
        loaded: Any = made.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    except Exception as error:
        raise ModelError(f"{model_dir}: transformers cannot take the converted weights: {error}") from error
    model, report = loaded
    if report["missing_keys"] or report["mismatched_keys"]:
        raise ModelError(f"{model_dir}: the converted weights do not fit: {report}")
    model.eval()
    return model  # type: ignore[no-any-return]
