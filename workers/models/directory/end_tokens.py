"""The tokens that end an answer: all those that any file of a model directory names as end of sequence.

    config.json              eos_token_id: an id or a list of ids; also in text_config
    generation_config.json   eos_token_id: an id or a list of ids
    tokenizer_config.json    eos_token: its text, which tokenizer.json has the id of
    special_tokens_map.json  the same

vLLM stops at those of the tokenizer and of generation_config.json, and reads config.json where there is no
generation_config.json. The union is for directories whose files contradict each other: fine-tuned chat models that
still have the base model's end in one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.router.model_files.sampling_defaults import GENERATION_FILE
from slipstream.workers.models.directory.json_keys import MAX_INTEGER, Keys, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE
from slipstream.workers.models.directory.token_ids import TOKENIZER_CONFIG_FILE, optional_keys, token_ids

NAMING_FILES = (TOKENIZER_CONFIG_FILE, "special_tokens_map.json")


def end_token_ids(model_dir: Path) -> tuple[int, ...]:
    """The ids in ascending order; some may be beyond the model's vocabulary. Raises ModelError."""
    config = Keys(model_dir / CONFIG_FILE, read_json(model_dir / CONFIG_FILE))
    found = {*_ids(config), *_ids(config.section("text_config")), *_ids(optional_keys(model_dir / GENERATION_FILE))}
    texts = {text for file in NAMING_FILES if (text := _eos_text(optional_keys(model_dir / file))) is not None}
    if texts:
        ids = token_ids(model_dir)
        found |= {ids[text] for text in texts if text in ids}
    return tuple(sorted(found))


def _ids(keys: Keys | None) -> list[int]:
    if keys is None:
        return []
    value = keys.get("eos_token_id", [])
    named = value if isinstance(value, list) else [value]
    ids = [token_id for token_id in named if token_id is not None and token_id != -1]
    if not all(type(token_id) is int and 0 <= token_id <= MAX_INTEGER for token_id in ids):
        raise keys.error("eos_token_id", f"must be a token id or a list of them, got {value!r}")
    return ids


def _eos_text(keys: Keys | None) -> str | None:
    """The text of the token, which is written as such or as an object with `content`."""
    token: Any = None if keys is None else keys.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
