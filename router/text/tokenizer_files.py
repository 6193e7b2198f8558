"""Reads the files of a model directory that describe its tokenizer and its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from slipstream.router.model_files.json_file import is_there, parse_json, why_no_file
from slipstream.router.text.conversion import converted


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`config` is tokenizer_config.json with what older models have in special_tokens_map.json and added_tokens.json.
    The tokens that it names may be missing in `tokenizer_json`, see `text.added_tokens`."""

    tokenizer_json: str
    config: dict[str, Any]
    chat_template: str | None
    vocab_size: int | None

    @classmethod
    def read(cls, directory: Path) -> TokenizerFiles:
        """A directory without tokenizer.json is converted by `transformers`, which takes some seconds the first time.
        Raises FileNotFoundError or ValueError with a sentence that names the file."""
        config = tokenizer_config(directory)
        vocab_size = stated_vocab_size(read_json(directory / "config.json"))
        chat_template = find_chat_template(directory, config)
        path = directory / "tokenizer.json"
        if is_there(path):
            return cls(_text(path), config, chat_template, vocab_size)
        made = converted(directory)
        return cls(made.tokenizer_json, config | made.named_tokens, chat_template, vocab_size)


def stated_vocab_size(config: dict[str, Any]) -> int | None:
    """What config.json says; models of text and images say it in their text_config. None: nothing."""
    text = config.get("text_config")
    of_text = text.get("vocab_size") if isinstance(text, dict) else None
    found = config.get("vocab_size") if of_text is None else of_text
    return found if isinstance(found, int) else None


def load_tokenizer(tokenizer_json: str) -> tokenizers.Tokenizer:
    """Raises ValueError if `tokenizer_json` is not one."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"tokenizer.json cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_config(directory: Path) -> dict[str, Any]:
    """As transformers 5 merges the files: special_tokens_map.json and added_tokens.json count only where
    tokenizer_config.json has no `added_tokens_decoder`. Then the former overrules it, but its additional tokens count
    only where there is no other list."""
    config = read_json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" in config:
        return config
    named = read_json(directory / "special_tokens_map.json")
    if "additional_special_tokens" in config and not config.get("extra_special_tokens"):
        config["extra_special_tokens"] = config.pop("additional_special_tokens")  # its older name
    if not isinstance(config.get("extra_special_tokens", {}), dict):  # an object gives tokens names
        named.pop("additional_special_tokens", None)
    extra = [config.get("extra_special_tokens"), named.get("extra_special_tokens")]
    if isinstance(extra[0], list) and isinstance(extra[1], list):
        named["extra_special_tokens"] = extra[0] + extra[1]
    return config | named | {"added_tokens": read_json(directory / "added_tokens.json")}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is no such file. Raises ValueError if it is anything else."""
    if not is_there(path):
        return {}
    content = _text(path)
    try:
        value = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return value


def _text(path: Path) -> str:
    """Raises ValueError, naming the file, if it is none or no text."""
    if (problem := why_no_file(path)) is not None:
        raise ValueError(f"{path} {problem}")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def find_chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """The chat template, from its own file or from tokenizer_config.json (one string, or several by name, of which one
    is the default); None if there is none. Raises ValueError if it is something else."""
    path = directory / "chat_template.jinja"
    if is_there(path):
        return _text(path)
    template = config.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        try:
            template = {entry["name"]: entry["template"] for entry in template}
        except (KeyError, TypeError):
            raise ValueError(f"{directory}: chat_template has an entry without name and template") from None
    if isinstance(template, dict):
        template = template.get("default")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"{directory}: chat_template is no text but {type(template).__name__}")
    return template
