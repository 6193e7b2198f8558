"""Whether the tensors of a checkpoint are those of the model that config.json describes.

A tensor that is missing or has another shape would stop the load. One that nothing reads is refused here as well,
because the model would compute something else than what was trained: a bias that config.json does not speak of, norms
of another family, more layers. transformers ignores such tensors with a warning.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import CONFIG_FILE, ModelConfig
from slipstream.workers.models.directory.stored_quantization import (
    CODES_PER_WORD,
    MXFP4_BLOCK,
    AwqStored,
    Fp8Stored,
    GptqStored,
)
from slipstream.workers.models.directory.weight_files import FLOATS, StoredTensor, WeightFiles
from slipstream.workers.models.sharding.quantized_shares import check_share, reordered_sentence
from slipstream.workers.models.sharding.rank_share import Rank, RankShare, StoredNames, TensorPart

MAX_DIGITS = 10  # of a layer's number; Python converts no text of thousands
LAYER = re.compile(r"model\.layers\.(\d+)\.")
# What may lie unread beside the weights: rotary frequencies (which follow from config.json), scales of activations and
# of the KV cache (activations are quantised by what is in them), and heads for training and classification.
HARMLESS = re.compile(
    r"(.*\.)?rotary_emb\.inv_freq"
    r"|.*\.(input|output|q|k|v|prob|bmm)_scale(_inv)?"
    r"|(v_head|value_head|score|summary)\..*"
)


def checked_names(config: ModelConfig, model_dir: Path) -> StoredNames:
    """The names of the tensors to read, after a check of all. Raises ModelError."""
    files = WeightFiles.read(model_dir)
    check_tensors(config, files)
    return StoredNames.of(config, files.tensors)


def check_tensors(config: ModelConfig, files: WeightFiles) -> None:
    """Raises ModelError, naming the tensor, if one is missing, has another shape or type, or is not part of the
    model."""
    if config.num_layers > len(files.tensors):  # before anything is made for each layer
        raise ModelError(
            f"{files.model_dir / CONFIG_FILE}: num_hidden_layers: must be at most the {len(files.tensors)} tensors that"
            f" there are, got {config.num_layers}"
        )
    share = RankShare.of(config, Rank(), StoredNames.of(config, files.tensors))
    read: set[str] = set()
    for part in _plain_parts(share):
        _check(files, part.name, part.stored_shape, FLOATS)
        read.add(part.name)
    for part in _linear_parts(share):
        for name, shape, dtypes in _stored_as(config, files, part):
            _check(files, name, shape, dtypes)
            read.add(name)
    for name in sorted(files.tensors.keys() - read):
        problem = _why_not_ignored(config, files, name)
        if problem is not None:
            raise ModelError(f"{files.model_dir / files.tensors[name].file}: tensor {name} {problem}")


def check_ranks(config: ModelConfig, files: WeightFiles, num_ranks: int, *, expert_parallel: bool = False) -> None:
    """Raises ModelError if experts or, naming it, a quantised tensor cannot be dealt out to so many ranks."""
    if num_ranks == 1:
        return
    if config.quantization is None:
        RankShare.of(config, Rank(0, num_ranks), expert_parallel=expert_parallel)
        return
    for rank in range(num_ranks):
        names = StoredNames.of(config, files.tensors)
        share = RankShare.of(config, Rank(rank, num_ranks), names, expert_parallel=expert_parallel)
        for part in _linear_parts(share):
            if next(_stored_as(config, files, part)) != (part.name, part.stored_shape, FLOATS):
                check_share(files.model_dir, part, config.quantization)
                if isinstance(config.quantization, GptqStored):
                    _check_order(config.quantization, files, part)


def _check_order(stored: GptqStored, files: WeightFiles, part: TensorPart) -> None:
    """Raises ModelError if a rank's inputs are in groups (GPTQ's act-order) that other ranks hold."""
    name = f"{part.name.removesuffix('weight')}g_idx"
    if part.columns is None or stored.group_size is None or name not in files.tensors:
        return
    groups = array("i" if files.tensors[name].dtype == "I32" else "q", files.content(name))[part.columns]
    first, end = part.columns.start // stored.group_size, -(-part.columns.stop // stored.group_size)
    if min(groups) < first or max(groups) >= end:
        raise ModelError(reordered_sentence(files.model_dir, part.name))


def parts_of(share: RankShare) -> list[TensorPart]:
    """All parts, each tensor once."""
    return list({part.name: part for part in (*_plain_parts(share), *_linear_parts(share))}.values())


def _plain_parts(share: RankShare) -> Iterator[TensorPart]:
    """All that is never quantised."""
    yield from (share.embedding, share.final_norm, share.lm_head)
    for layer in share.layers:
        yield from (layer.attention_norm, layer.mlp_norm)
        optional = (layer.query_norm, layer.key_norm, layer.attention_post_norm, layer.mlp_post_norm, layer.sinks)
        yield from (part for part in optional if part is not None)
        for linear in layer.linears:
            yield from linear.biases or ()


def _linear_parts(share: RankShare) -> Iterator[TensorPart]:
    for layer in share.layers:
        for linear in layer.linears:
            yield from linear.weights


def _stored_as(
    config: ModelConfig, files: WeightFiles, part: TensorPart
) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """The tensors that a matrix is stored as: name, shape, possible types."""
    stored, tensors = config.quantization, files.tensors
    outputs, inputs = part.shape
    base = part.name.removesuffix("weight")
    scale = next((name for kind in ("scale_inv", "scale") if (name := f"{part.name}_{kind}") in tensors), None)
    if isinstance(stored, Fp8Stored) and scale is not None:
        yield part.name, part.stored_shape, ("F8_E4M3",)
        shape = tensors[scale].shape
        if stored.block is not None:
            shape = (-(-outputs // stored.block[0]), -(-inputs // stored.block[1]))
        yield scale, shape, FLOATS
    elif isinstance(stored, AwqStored | GptqStored) and f"{base}qweight" in tensors:
        groups = -(-inputs // (stored.group_size or inputs))
        words = (outputs // CODES_PER_WORD, inputs // CODES_PER_WORD)
        codes = (inputs, words[0]) if isinstance(stored, AwqStored) else (words[1], outputs)
        yield f"{base}qweight", codes, ("I32",)
        yield f"{base}qzeros", (groups, words[0]), ("I32",)
        yield f"{base}scales", (groups, outputs), FLOATS
        if isinstance(stored, GptqStored) and f"{base}g_idx" in tensors:
            yield f"{base}g_idx", (inputs,), ("I32", "I64")
    elif part.item is not None and f"{part.name}_blocks" in tensors:
        count, blocks = part.stored_shape[0], inputs // MXFP4_BLOCK
        yield f"{part.name}_blocks", (count, outputs, blocks, MXFP4_BLOCK // 2), ("U8",)
        yield f"{part.name}_scales", (count, outputs, blocks), ("U8",)
    else:
        yield part.name, part.stored_shape, FLOATS


def _check(files: WeightFiles, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    tensor: StoredTensor | None = files.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{files.model_dir}: tensor {name} is missing")
    path = files.model_dir / tensor.file
    if tensor.shape != shape:
        raise ModelError(f"{path}: tensor {name} has shape {list(tensor.shape)}, config.json asks for {list(shape)}")
    if tensor.dtype not in dtypes:
        raise ModelError(f"{path}: tensor {name} has unsupported dtype {tensor.dtype}")


def _why_not_ignored(config: ModelConfig, files: WeightFiles, name: str) -> str | None:
    """Why a tensor that nothing reads must not lie there, to be said after its name; None if it does no harm."""
    if HARMLESS.fullmatch(name):
        return None
    if name.endswith(".bias"):
        if not any(files.content(name)):  # as GPTQ's tools write it
            return None
        return "is not zero, but the model that config.json describes has no such bias (attention_bias, mlp_bias)"
    layer = LAYER.match(name)
    if layer is not None and (len(layer[1]) > MAX_DIGITS or int(layer[1]) >= config.num_layers):
        return f"is of a layer that the model does not have: config.json says num_hidden_layers = {config.num_layers}"
    return f"is no part of the {config.family} model that config.json describes"
