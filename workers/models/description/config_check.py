"""The keys of config.json that most models have, checked before transformers reads the file, whose own errors name
neither file nor key."""

from __future__ import annotations

from pathlib import Path

from slipstream.workers.models.directory.json_keys import MAX_INTEGER, Keys, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE, read_dtype
from slipstream.workers.models.directory.weight_files import WeightFiles, pickled_file_names

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "state_size",
    "max_position_embeddings",
    "n_positions",
    "n_embd",
    "n_layer",
    "n_head",
)
COUNTS = ("intermediate_size", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
WINDOW = "sliding_window"
LAYERS = ("num_hidden_layers", "n_layer")
# As many layers are built without a look at the checkpoint. (Known models have up to 126.) A million take minutes.
MANY_LAYERS = 256


def check_config(model_dir: Path) -> None:
    """Raises ModelError: a sentence that names file, key and value. Types of models that give a key as a list, one
    number for each layer, are left to transformers."""
    keys = Keys(model_dir / CONFIG_FILE, read_json(model_dir / CONFIG_FILE))
    sections = (
        section for name in TEXT_SECTIONS if isinstance(keys.get(name), dict) and (section := keys.section(name))
    )
    for part in (keys, *sections):
        for key in SIZES:
            _check_number(part, key, 1)
        for key in COUNTS:
            _check_number(part, key, 0)
        _check_window(part)
        _check_experts(part)
        _check_layers(part, model_dir)
        read_dtype(part)
    keys.section("quantization_config")


def _check_number(keys: Keys, key: str, least: int) -> None:
    value = keys.get(key)
    if value is None or isinstance(value, list | dict):
        return
    if type(value) is not int or value < least:
        raise keys.error(key, f"must be {'a positive integer' if least else 'an integer from 0 on'}, got {value!r}")
    if value > MAX_INTEGER:
        raise keys.error(key, f"must be at most {MAX_INTEGER}, got {value!r}")


def _check_window(keys: Keys) -> None:
    """Of models that have windows: where `use_sliding_window` is false, the number is not read."""
    if keys.get("use_sliding_window") is not False:
        _check_number(keys, WINDOW, 1)


def _check_experts(keys: Keys) -> None:
    chosen, key = keys.get("num_experts_per_tok"), "num_experts_per_tok"
    for name in EXPERTS:
        there = keys.get(name)
        if type(there) is not int or type(chosen) is not int or there == 0:
            continue
        if not 1 <= chosen <= there:
            raise keys.error(key, f"must be from 1 to {name} = {there}, got {chosen}")


def _check_layers(keys: Keys, model_dir: Path) -> None:
    """A layer has a tensor at least, and building layers takes time and memory."""
    for key in LAYERS:
        value = keys.get(key)
        if type(value) is not int or value <= MANY_LAYERS:
            continue
        most = MANY_LAYERS if pickled_file_names(model_dir) else len(WeightFiles.read(model_dir).tensors)
        if value > most:
            raise keys.error(key, f"must be at most {most}, as the checkpoint has no tensors for more, got {value}")
