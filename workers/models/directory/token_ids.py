"""The ids of a tokenizer's tokens by what its JSON files say, without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.router.model_files.json_file import is_there
from slipstream.workers.models.directory.json_keys import Keys, read_json

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
OLDER_FILES = ("vocab.json", "added_tokens.json")
MAX_DIGITS = 10  # of an id; Python converts no text of thousands


def token_ids(model_dir: Path) -> dict[str, int]:
    """The id of each token's text by tokenizer.json; for texts that it does not have, by `added_tokens_decoder` of
    tokenizer_config.json, and by added_tokens.json and vocab.json of older tokenizers. Raises ModelError."""
    ids: dict[str, Any] = {}
    for file in OLDER_FILES:
        older = optional_keys(model_dir / file)
        ids |= {} if older is None else older.values
    config = optional_keys(model_dir / TOKENIZER_CONFIG_FILE)
    match None if config is None else config.get("added_tokens_decoder"):
        case dict(decoder):
            for name, token in decoder.items():
                if (
                    isinstance(token, dict)
                    and isinstance(token.get("content"), str)
                    and name.isdecimal()
                    and len(name) <= MAX_DIGITS
                ):
                    ids[token["content"]] = int(name)
    spec = optional_keys(model_dir / TOKENIZER_FILE)
    model = None if spec is None else spec.get("model")
    match model.get("vocab") if isinstance(model, dict) else None:
        case dict(vocab):
            ids |= vocab
        case list(pieces):  # of a unigram model: pairs of piece and score
            ids |= {
                str(piece[0]): token_id for token_id, piece in enumerate(pieces) if isinstance(piece, list) and piece
            }
    for token in () if spec is None else spec.get("added_tokens", ()):
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            ids[token["content"]] = token.get("id")
    return {text: token_id for text, token_id in ids.items() if type(token_id) is int}


def optional_keys(path: Path) -> Keys | None:
    """The keys of a JSON file; None if there is none. Raises ModelError if it holds anything else."""
    return Keys(path, read_json(path)) if is_there(path) else None
