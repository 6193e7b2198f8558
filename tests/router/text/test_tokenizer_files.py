"""Tokens that tokenizer.json lacks, and models without a tokenizer.json: as `transformers` reads them."""

from __future__ import annotations

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer as HfTokenizer
from transformers import AutoTokenizer

from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.text import conversion
from slipstream.router.text.added_tokens import complete_json
from slipstream.router.text.tokenizer import Tokenizer
from slipstream.router.text.tokenizer_files import TokenizerFiles, find_chat_template

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"
OFF = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
MARKS = {"4096": {"content": "<|im_start|>"} | OFF, "4097": {"content": "<|im_end|>"} | OFF}
TEMPLATE = (
    "{{bos_token}}{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{{eos_token}}{{image_token}}"
)
CONTENTS = ("Hi there", " a <think> b </think>\n", "x<|im_end|>y <mask>z", "Z<tool> <tool>  tool <img> <extra>", "")


def model(directory: Path, files: dict[str, Any]) -> Path:
    """The demo model's tokenizer with other files beside it."""
    shutil.copy(DEMO / "tokenizer.json", directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


def loaded(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(directory, ThreadPoolExecutor(1))  # never used: the texts are short


def ids_of(tokenizer: Tokenizer, content: str) -> list[int]:
    return unpack_ids(asyncio.run(tokenizer.encode_chat([{"role": "user", "content": content}], 10_000)))


KINDS: dict[str, dict[str, Any]] = {
    "listed with ids": {"tokenizer_config.json": {"added_tokens_decoder": MARKS}},
    "listed with ids that are not the next": {
        "tokenizer_config.json": {"added_tokens_decoder": {"5000": MARKS["4097"], "4800": MARKS["4096"]}}
    },
    "listed, of all flags": {
        "tokenizer_config.json": {
            "added_tokens_decoder": MARKS
            | {
                "4098": {"content": "<think>"} | OFF | {"special": False},
                "4099": {"content": "</think>"} | OFF | {"special": False, "normalized": True, "rstrip": True},
                "4100": {"content": "<mask>"} | OFF | {"lstrip": True},
                "4101": {"content": "tool"} | OFF | {"single_word": True},
            }
        }
    },
    "with other flags than in tokenizer.json": {
        "tokenizer_config.json": {"added_tokens_decoder": {"3": {"content": "<|end|>"} | OFF | {"lstrip": True}}}
    },
    "extra": {"tokenizer_config.json": {"extra_special_tokens": ["<|im_start|>", "<|im_end|>", "<extra>"]}},
    "additional": {"tokenizer_config.json": {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}},
    "extra by name": {"tokenizer_config.json": {"extra_special_tokens": {"img": "<img>", "image_token": "<tool>"}}},
    "named": {
        "tokenizer_config.json": {
            "bos_token": "<|im_start|>",
            "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"} | OFF,
            "image_token": "<img>",
        }
    },
    "in special_tokens_map.json": {
        "tokenizer_config.json": {"bos_token": "<|bos|>"},
        "special_tokens_map.json": {
            "bos_token": {"content": "<|im_start|>", "lstrip": False, "normalized": False, "rstrip": True},
            "additional_special_tokens": ["<|im_end|>", "<extra>"],
        },
    },
    "special_tokens_map.json is older than the list": {
        "tokenizer_config.json": {"added_tokens_decoder": MARKS, "bos_token": "<|bos|>"},
        "special_tokens_map.json": {"bos_token": "<|im_start|>", "additional_special_tokens": ["<extra>"]},
        "added_tokens.json": {"<img>": 4098},
    },
    "in added_tokens.json": {
        "tokenizer_config.json": {"eos_token": "<|im_end|>"},
        "added_tokens.json": {"<|im_end|>": 4097, "<|im_start|>": 4096, "<think>": 4098},
    },
    "in added_tokens.json once more": {
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "bos_token": "<|end|>"},
        "special_tokens_map.json": {"bos_token": "<|bos|>", "additional_special_tokens": ["<|user|>"]},
        "added_tokens.json": {"<|user|>": 4096, "<|bos|>": 4097},
    },
    "both lists": {
        "tokenizer_config.json": {"extra_special_tokens": {"img": "<img>"}, "additional_special_tokens": ["<mask>"]},
        "special_tokens_map.json": {"additional_special_tokens": ["<extra>", "<|im_end|>"]},
    },
    "a start token that the config asks for": {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_beside_tokenizer_json_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    directory = model(tmp_path, KINDS[kind])
    tokenizer, reference = loaded(directory), AutoTokenizer.from_pretrained(directory)
    special = [token.content for token in reference.added_tokens_decoder.values() if token.special]
    for content in CONTENTS:
        if not any(token in content for token in (*special, "<|im_end|>")):  # which are text, see the other tests
            chat = [{"role": "user", "content": content}]
            expected = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            assert ids_of(tokenizer, content) == expected
        assert unpack_ids(asyncio.run(tokenizer.encode([content], 1000))[0]) == reference(content)["input_ids"]
    ids = range(4096, len(reference))
    assert [tokenizer.pieces.bytes_of(i).decode() for i in ids] == reference.convert_ids_to_tokens(list(ids))
    hidden = [token_id for token_id in ids if reference.decode([token_id], skip_special_tokens=True) == ""]
    assert [token_id for token_id in ids if tokenizer.pieces[token_id] == ""] == hidden
    whole = HfTokenizer.from_str(complete_json(TokenizerFiles.read(directory)))
    assert whole.get_added_tokens_decoder() == reference.backend_tokenizer.get_added_tokens_decoder()


def test_a_grammar_knows_the_added_tokens(tmp_path: Path) -> None:
    directory = model(tmp_path, KINDS["listed with ids"])
    vocabulary = LLTokenizer(complete_json(TokenizerFiles.read(directory)), n_vocab=4160)
    assert vocabulary.tokenize_str("<|im_start|>") == [4096]
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark('start: "a" <|im_end|>'), log_level=0)
    assert not matcher.is_error()
    matcher.consume_tokens(vocabulary.tokenize_str("a"))
    assert matcher.compute_bitmask()[4097 >> 3] >> (4097 & 7) & 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}}, r"added_tokens_decoder\.x"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"1": 5}}}, r"added_tokens_decoder\.1 .* got 5"),
        ({"tokenizer_config.json": {"added_tokens_decoder": []}}, None),
        ({"tokenizer_config.json": {"added_tokens_decoder": [1]}}, r"added_tokens_decoder must be an object"),
        ({"tokenizer_config.json": {"extra_special_tokens": [5]}}, r"extra_special_tokens\.0 .* got 5"),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"1": {"content": "a", "lstrip": "no"}}}},
            r"added_tokens_decoder\.1\.lstrip must be true or false, got 'no'",
        ),
        ({"added_tokens.json": {"<x>": "1"}}, r"added_tokens\.json: '<x>' must have an id, got '1'"),
    ],
)
def test_a_wrong_entry_is_named(files: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    directory = model(tmp_path, files)
    if message is None:
        loaded(directory)
        return
    with pytest.raises(ValueError, match=message):
        loaded(directory)


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with vocab.json and merges.txt, as Qwen2 has them, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    directory.mkdir()
    spec = json.loads((DEMO / "tokenizer.json").read_text())["model"]
    (directory / "vocab.json").write_text(json.dumps(spec["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in spec["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (directory / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 4160}')
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": MARKS, "eos_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_vocabulary_without_tokenizer_json_is_converted_once(without: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, reference = loaded(without), AutoTokenizer.from_pretrained(without)
    for content in CONTENTS[:2]:
        chat = [{"role": "user", "content": content}]
        assert ids_of(tokenizer, content) == reference.apply_chat_template(chat, return_dict=False)
        assert unpack_ids(asyncio.run(tokenizer.encode([content], 1000))[0]) == reference(content)["input_ids"]
    monkeypatch.setattr(conversion, "convert_apart", lambda directory, name: pytest.fail("it was converted again"))
    assert ids_of(loaded(without), "x") == ids_of(tokenizer, "x")
    (without / "merges.txt").write_text("#version: 0.2")  # another tokenizer
    with pytest.raises(pytest.fail.Exception):
        loaded(without)


def test_a_vocabulary_that_cannot_be_converted_is_refused_by_its_name(
    without: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (without / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"merges\.txt is missing beside vocab\.json"):
        loaded(without)
    (without / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    monkeypatch.setitem(conversion.VOCABULARIES, "tokenizer.model", ("no_such.module",))
    with pytest.raises(
        ValueError, match=r"tokenizer\.model cannot be converted .* \(no_such\.module cannot be imported"
    ):
        loaded(without)
    monkeypatch.setitem(conversion.VOCABULARIES, "tiktoken.model", ("no_tiktoken",))
    (without / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(ValueError, match="no_tiktoken"):
        loaded(without)


def test_modules_in_the_working_directory_are_not_used_for_a_conversion(
    without: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert ids_of(loaded(without), "x")


def test_a_conversion_that_fails_says_why_in_one_line(without: Path) -> None:
    (without / "vocab.json").write_text('{"a": "b"}')
    with pytest.raises(ValueError, match=r"vocab\.json cannot be converted to a tokenizer\.json: \w+: .+") as failure:
        loaded(without)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ({"tool_use": "t", "default": "d"}, "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        ("d", "d"),
        (None, None),
    ],
)
def test_the_template_called_default_is_the_one_for_chats(template: Any, found: str | None, tmp_path: Path) -> None:
    assert find_chat_template(tmp_path, {"chat_template": template}) == found
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert find_chat_template(tmp_path, {}) == found


@pytest.mark.parametrize("template", [5, [5], [{"name": "default"}], {"default": 5}])
def test_a_chat_template_that_is_none_is_refused(template: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chat_template"):
        find_chat_template(tmp_path, {"chat_template": template})


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_not_utf_8_is_named(name: str, tmp_path: Path) -> None:
    (model(tmp_path, {}) / name).write_bytes(b"ab\xff\xfe")
    with pytest.raises(ValueError, match=rf"{name} is not UTF-8 text \(byte 2\)"):
        loaded(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
def test_a_link_that_leads_nowhere_is_named(name: str, tmp_path: Path) -> None:
    (model(tmp_path, {}) / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("gone")
    with pytest.raises(ValueError, match=rf"{name} is a link to a file that does not exist"):
        loaded(tmp_path)


def test_a_file_of_chat_templates_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    (model(tmp_path, {}) / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"chat_template\.json is not valid JSON"):
        loaded(tmp_path)
