"""The tokens that end an answer: all those that any file of a model directory names as end of sequence.

    config.json              eos_token_id: an id or a list of ids; also in text_config
    generation_config.json   eos_token_id: an id or a list of ids
    tokenizer_config.json    eos_token: its text, which tokenizer.json has the id of; else special_tokens_map.json

vLLM stops at those of the tokenizer and of generation_config.json, and reads config.json where there is no
generation_config.json. The union is for directories whose files contradict each other: fine-tuned chat models that
still have the base model's end in one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.workers.models.config import CONFIG_FILE, GENERATION_FILE
from slipstream.workers.models.json_keys import Keys, read_json

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"


def end_token_ids(model_dir: Path) -> tuple[int, ...]:
    """The ids in ascending order; some may be beyond the model's vocabulary. Raises ModelError."""
    config = Keys(model_dir / CONFIG_FILE, read_json(model_dir / CONFIG_FILE))
    found = {*_ids(config), *_ids(config.section("text_config")), *_ids(_optional(model_dir / GENERATION_FILE))}
    named = _token_id(model_dir)
    if named is not None:
        found.add(named)
    return tuple(sorted(found))


def _optional(path: Path) -> Keys | None:
    return Keys(path, read_json(path)) if path.exists() else None


def _ids(keys: Keys | None) -> list[int]:
    if keys is None:
        return []
    value = keys.get("eos_token_id", [])
    ids = [token_id for token_id in (value if isinstance(value, list) else [value]) if token_id != -1]  # -1: none
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise keys.error("eos_token_id", f"must be a token id or a list of them, got {value!r}")
    return ids


def _token_id(model_dir: Path) -> int | None:
    """The id of the token that the tokenizer names; None if it names none, or one that it does not have."""
    for file in (TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE):
        keys = _optional(model_dir / file)
        token: Any = None if keys is None else keys.get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return _id_of(model_dir, text)
    return None


def _id_of(model_dir: Path, text: str) -> int | None:
    """The id of a token by tokenizer.json, else by `added_tokens_decoder` of tokenizer_config.json."""
    spec = _optional(model_dir / TOKENIZER_FILE)
    for token in () if spec is None else spec.get("added_tokens", ()):
        if isinstance(token, dict) and token.get("content") == text and type(token.get("id")) is int:
            return int(token["id"])
    model = None if spec is None else spec.get("model")
    match model.get("vocab") if isinstance(model, dict) else None:
        case dict(vocab) if type(vocab.get(text)) is int:
            return int(vocab[text])
        case list(pieces):  # of a unigram model: pairs of piece and score
            for token_id, piece in enumerate(pieces):
                if isinstance(piece, list) and piece[:1] == [text]:
                    return token_id
    config = _optional(model_dir / TOKENIZER_CONFIG_FILE)
    match None if config is None else config.get("added_tokens_decoder"):
        case dict(decoder):
            for name, token in decoder.items():
                if isinstance(token, dict) and token.get("content") == text and name.isdecimal():
                    return int(name)
    return None
