"""Adds the tokens to a tokenizer that tokenizer.json lacks, and other files of the model have.

Which they are, and in which order they get their ids, is as in transformers 5 (`_from_pretrained` of
`PreTrainedTokenizerBase`, and `TokenizersBackend`). A token that is new gets the next free id, whatever its file says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import AddedToken

from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_missing(tokenizer: tokenizers.Tokenizer, spec: dict[str, Any], config: dict[str, Any]) -> bool:
    """Brings the tokens of `config` into the tokenizer and into the `added_tokens` of its tokenizer.json `spec`.
    Returns whether there was a change. Raises ValueError with a sentence that names the field."""
    known = tokenizer.get_added_tokens_decoder()
    before = {token_id: flags_of(token) for token_id, token in known.items()}
    tokenizer.add_tokens(tokens_of(config, known))
    after = {token_id: flags_of(token) for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    if after == before:
        return False
    spec["added_tokens"] = [{"id": token_id} | flags for token_id, flags in sorted(after.items())]
    return True


def complete_json(files: TokenizerFiles) -> str:
    """The tokenizer.json with all tokens. Raises ValueError with a sentence that names the mistake."""
    tokenizer, spec = load_tokenizer(files.tokenizer_json), json.loads(files.tokenizer_json)
    return json.dumps(spec) if add_missing(tokenizer, spec, files.config) else files.tokenizer_json


def flags_of(token: AddedToken) -> dict[str, Any]:
    """The token as tokenizer.json describes it, without its id."""
    return {"content": token.content} | {flag: getattr(token, flag) for flag in FLAGS}


def tokens_of(config: dict[str, Any], known: dict[int, AddedToken]) -> list[AddedToken]:
    """The tokens to add, in order. A later one with the same text overrules an earlier one. `known` are those of
    tokenizer.json by id. Raises ValueError."""
    named = {token.content: token for _, token in named_tokens(config)}
    extra = list(extra_tokens(config))
    listed = listed_tokens(config)
    if "added_tokens_decoder" not in config:
        listed |= known
    texts = {token.content for token in (*known.values(), *listed.values())}
    tokens = [token for _, token in sorted(listed.items())]
    tokens += [token for token in (*named.values(), *extra) if token.content not in texts]
    for token in tokens:
        token.special = token.special or token.content in named
    return tokens


def listed_tokens(config: dict[str, Any]) -> dict[int, AddedToken]:
    """Those that the files list, by the id that they give."""
    if "added_tokens_decoder" in config:
        listed = {}
        for key, value in object_at(config, "added_tokens_decoder").items():
            field = f"added_tokens_decoder.{key}"
            if not key.isdecimal():
                raise ValueError(f"tokenizer_config.json: {field} is not under the id of a token")
            listed[int(key)] = added_token(field, value)
        return listed
    extra = config.get("extra_special_tokens")
    named = [config.get(key) for key in NAMED_TOKENS]
    # transformers does not look into tokens that are written as its own objects here.
    special = {token_text(value) for value in named if not isinstance(value, dict) or "__type" not in value}
    special |= set(map(token_text, extra)) if isinstance(extra, list) else set()
    listed = {}
    for text, token_id in object_at(config, "added_tokens").items():
        if not isinstance(token_id, int):
            raise ValueError(f"added_tokens.json: {text!r} must have an id, got {token_id!r}")
        listed[token_id] = AddedToken(text, normalized=text not in special, special=text in special)
    return listed


def named_tokens(config: dict[str, Any]) -> Iterator[tuple[str, AddedToken]]:
    """The tokens with a name: bos_token, eos_token and so on, and whatever a model calls its own."""
    own = [key for key in config if key.endswith("_token") and key not in NAMED_TOKENS]
    for key in (*NAMED_TOKENS, *own):
        value = config.get(key)
        if isinstance(value, str | dict):
            yield key, added_token(key, value)
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        for key, value in extra.items():
            yield key, added_token(f"extra_special_tokens.{key}", value)


def extra_tokens(config: dict[str, Any]) -> Iterator[AddedToken]:
    """The special tokens without a name. The older of the two fields counts where the newer one lists none."""
    extra = config.get("extra_special_tokens")
    field = "extra_special_tokens" if extra and isinstance(extra, list) else "additional_special_tokens"
    values = config.get(field)
    for number, value in enumerate(values if isinstance(values, list) else ()):
        yield added_token(f"{field}.{number}", value)


def token_text(value: Any) -> str | None:
    """The text of a token, which is written as a text or as an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def added_token(field: str, value: Any) -> AddedToken:
    """A token as a text, or as an object with `content` and flags. Raises ValueError."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise ValueError(f"tokenizer_config.json: {field} must be a text or an object with `content`, got {value!r}")
    flags = {flag: value[flag] for flag in FLAGS if flag in value}
    for flag, given in flags.items():
        if not isinstance(given, bool):
            raise ValueError(f"tokenizer_config.json: {field}.{flag} must be true or false, got {given!r}")
    return AddedToken(value["content"], **flags)


def object_at(config: dict[str, Any], field: str) -> dict[str, Any]:
    value = config.get(field) or {}
    if not isinstance(value, dict):
        raise ValueError(f"tokenizer_config.json: {field} must be an object, got {value!r}")
    return value
