"""A transformers model from a directory: its configuration, its class, its weights."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from slipstream.workers.models.directory.json_keys import ModelError

POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
UNBOUNDED_POSITIONS = 1 << 20  # what we say of models whose configuration bounds no length


def read_config(model_dir: Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Raises ModelError."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            model_dir, trust_remote_code=trust_remote_code, local_files_only=True
        )
        return config
    except Exception as error:  # whatever a configuration class makes of the file
        raise ModelError(f"{model_dir / 'config.json'}: transformers cannot read it: {_sentence(error)}") from error


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a configuration that describes the text decoder."""
    text: PreTrainedConfig = config.get_text_config(decoder=True)
    return text


def max_positions(config: PreTrainedConfig) -> int:
    """Tokens of context."""
    text = decoder_config(config)
    found = next((value for key in POSITION_KEYS if isinstance(value := getattr(text, key, None), int)), None)
    return UNBOUNDED_POSITIONS if found is None or found < 1 else found


def empty_model(config: PreTrainedConfig, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """The model with zeros as weights; on the meta device, with none. Raises ModelError."""
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
        if device != "meta":
            model = model.to_empty(device=device)
            model.init_weights()
    except Exception as error:
        raise ModelError(f"transformers cannot build the model: {_sentence(error)}") from error
    return cast(PreTrainedModel, model.eval())


def load_pretrained(model_dir: Path, dtype: torch.dtype, **options: Any) -> PreTrainedModel:
    """Raises ModelError, also if weights are missing or have other shapes."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=dtype, local_files_only=True, output_loading_info=True, **options
        )
    except Exception as error:
        raise ModelError(f"{model_dir}: transformers cannot load it: {_sentence(error)}") from error
    model, report = loaded
    if report["missing_keys"]:
        raise ModelError(f"{model_dir}: no weights for {_some(report['missing_keys'])}")
    if report["mismatched_keys"]:
        raise ModelError(
            f"{model_dir}: weights of other shapes than config.json asks for: {_some(report['mismatched_keys'])}"
        )
    return cast(PreTrainedModel, model.eval())


def takes(model: PreTrainedModel, argument: str) -> bool:
    """Whether the model's forward has such an argument."""
    return argument in inspect.signature(model.forward).parameters


def transformers_version() -> str:
    return transformers.__version__


def _sentence(error: Exception) -> str:
    """The first line of an error's text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _some(names: Any) -> str:
    listed = sorted(str(name) for name in names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
