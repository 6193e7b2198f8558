"""A transformers model from a directory: its configuration, its class, its weights."""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.weight_files import pickled_file_names
from slipstream.workers.models.general.quantized import set_dequantization

log = logging.getLogger(__name__)

POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
UNBOUNDED_POSITIONS = 1 << 20  # what we say of models whose configuration bounds no length


@contextmanager
def offline() -> Iterator[None]:
    """Within it, `huggingface_hub` asks no server, whatever a model's directory refers to."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@offline()
def read_config(model_dir: Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Raises ModelError."""
    log_as_others_do()
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            model_dir, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (Exception, SystemExit) as error:  # whatever a configuration class makes of the file
        raise ModelError(f"{model_dir / 'config.json'}: transformers cannot read it: {sentence(error)}") from error
    text = decoder_config(config)
    if getattr(text, "use_bidirectional_attention", None) == "vision":
        text.use_bidirectional_attention = None  # the tokens of an image see each other, and there are no images here
    return config


def log_as_others_do() -> None:
    """Lines of transformers go to the handlers of this process, in their format, instead of one of its own."""
    transformers.utils.logging.disable_default_handler()
    transformers.utils.logging.enable_propagation()


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a configuration that describes the text decoder."""
    text: PreTrainedConfig = config.get_text_config(decoder=True)
    return text


def max_positions(config: PreTrainedConfig) -> int:
    """Tokens of context."""
    # With longrope, all keys of a longer text have other rotations than those of a shorter one. Pages keep them.
    rope = getattr(decoder_config(config), "rope_parameters", None) or {}
    return min([stated_positions(config), *_short_positions(rope)])


def stated_positions(config: PreTrainedConfig) -> int:
    """Tokens of context, as the configuration has them."""
    text = decoder_config(config)
    found = next((value for key in POSITION_KEYS if isinstance(value := getattr(text, key, None), int)), None)
    return UNBOUNDED_POSITIONS if found is None or found < 1 else found


def _short_positions(rope: dict[str, Any]) -> Iterator[int]:
    """Where longrope turns to other rotations. Layers of several kinds have parameters of their own."""
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        positions = part.get("original_max_position_embeddings")
        if part.get("rope_type") == "longrope" and isinstance(positions, int):
            yield positions


@offline()
def empty_model(
    config: PreTrainedConfig, dtype: torch.dtype, device: str, trust_remote_code: bool = False
) -> PreTrainedModel:
    """The model with zeros as weights; on the meta device, with none. Raises ModelError."""
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=dtype, trust_remote_code=trust_remote_code
            )
        if device != "meta":
            model = model.to_empty(device=device)
            model.init_weights()
    except (Exception, SystemExit) as error:
        raise ModelError(f"transformers cannot build the model: {sentence(error)}") from error
    return cast(PreTrainedModel, model.eval())


@offline()
def load_pretrained(
    model_dir: Path, dtype: torch.dtype, trust_remote_code: bool = False, **options: Any
) -> PreTrainedModel:
    """Raises ModelError, also if weights are missing or have other shapes."""
    config = read_config(model_dir, trust_remote_code)
    set_dequantization(config, model_dir)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model_dir,
            config=config,
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **options,
        )
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        check_plain(model_dir)
        raise ModelError(f"{model_dir}: transformers cannot load it: {sentence(error)}") from error
    model, report = loaded
    if report["missing_keys"]:
        raise ModelError(missing_sentence(model_dir, report["missing_keys"]))
    if report["mismatched_keys"]:
        raise ModelError(mismatched_sentence(model_dir, report["mismatched_keys"]))
    if report["unexpected_keys"]:
        log.warning("%s: %s does not read %s", model_dir, type(model).__name__, _some(report["unexpected_keys"]))
    return cast(PreTrainedModel, model.eval())


def check_plain(model_dir: Path) -> None:
    """Raises ModelError if a file in PyTorch's own form, a pickle, cannot be read as tensors alone."""
    for name in pickled_file_names(model_dir):
        load_plain(model_dir / name)


def load_plain(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file in PyTorch's own form, without their numbers. Raises ModelError."""
    try:
        found = torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{path} holds other things than tensors, or is damaged; only tensors are loaded") from error
    except (Exception, SystemExit) as error:  # whatever torch makes of a damaged file
        raise ModelError(f"{path} cannot be read: {sentence(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(one, torch.Tensor) for one in found.values()):
        raise ModelError(f"{path} holds other things than tensors by their names")
    return found


def missing_sentence(model_dir: Path, names: Iterable[str]) -> str:
    return f"{model_dir}: no weights for {_some(names)}"


def mismatched_sentence(model_dir: Path, found: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> str:
    """`found` are the names with their shapes: the stored one, and the one that the model has."""
    shapes = (f"{name} ({list(stored)}, not {list(asked)})" for name, stored, asked in found)
    return f"{model_dir}: weights of other shapes than config.json asks for: {_some(shapes)}"


def takes(model: PreTrainedModel, argument: str) -> bool:
    """Whether the model's forward has such an argument."""
    return argument in inspect.signature(model.forward).parameters


def transformers_version() -> str:
    return transformers.__version__


def sentence(error: BaseException) -> str:
    """The first line of an error's text; if it ends with a colon, the next one, too."""
    text = ""
    for line in str(error).split("\n"):
        text = f"{text} {line.strip()}".strip()
        if text and not text.endswith(":"):
            break
    return f"{type(error).__name__}: {text}"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
