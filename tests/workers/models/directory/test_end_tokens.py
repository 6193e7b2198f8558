"""Every file that names an end of sequence counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.workers.models.directory.end_tokens import end_token_ids
from slipstream.workers.models.directory.json_keys import ModelError

ADDED = {"added_tokens": [{"id": 9, "content": "<|im_end|>"}], "model": {"vocab": {"</s>": 4}}}
UNIGRAM = {"model": {"vocab": [["<unk>", 0.0], ["</s>", -1.0]]}}


def end_tokens(folder: Path, config: Any = None, **files: Any) -> tuple[int, ...]:
    """`config` is the end in config.json; `files` are other files by their names without .json."""
    (folder / "config.json").write_text(json.dumps({"eos_token_id": config}))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return end_token_ids(folder)


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        (None, {}, ()),
        (2, {}, (2,)),
        ([3, 2], {"generation_config": {}}, (2, 3)),
        (2, {"generation_config": {"eos_token_id": [5, 2]}}, (2, 5)),
        (None, {"generation_config": {"eos_token_id": 7}}, (7,)),
        (2, {"generation_config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": None}}, (2,)),
        (2, {"tokenizer_config": {"eos_token": "<|im_end|>"}, "tokenizer": ADDED}, (2, 9)),
        (2, {"tokenizer_config": {"eos_token": {"content": "</s>"}}, "tokenizer": ADDED}, (2, 4)),
        (2, {"tokenizer_config": {}, "special_tokens_map": {"eos_token": "</s>"}, "tokenizer": UNIGRAM}, (1, 2)),
        (2, {"tokenizer_config": {"eos_token": "<e>", "added_tokens_decoder": {"8": {"content": "<e>"}}}}, (2, 8)),
        (
            2,
            {
                "tokenizer_config": {"eos_token": "<|im_end|>"},
                "special_tokens_map": {"eos_token": "</s>"},
                "tokenizer": ADDED,
            },
            (2, 4, 9),
        ),
        (2, {"tokenizer_config": {"eos_token": "<unknown>"}, "tokenizer": ADDED}, (2,)),
        (2, {"tokenizer_config": {"eos_token": "<e>"}, "added_tokens": {"<e>": 7}, "vocab": {"a": 0}}, (2, 7)),
        (-1, {"generation_config": {"eos_token_id": 2}}, (2,)),
        ([2, None, -1], {"generation_config": {"eos_token_id": [None, 5]}}, (2, 5)),
        ([None], {"generation_config": {"eos_token_id": [-1]}}, ()),
        (2, {"tokenizer_config": {"eos_token": "<e>", "added_tokens_decoder": {"9" * 5000: {"content": "<e>"}}}}, (2,)),
    ],
)
def test_all_files_together_name_the_end_tokens(
    config: Any, files: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert end_tokens(tmp_path, config, **files) == expected


def test_a_nested_text_config_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 6}, "eos_token_id": 2}))
    assert end_token_ids(tmp_path) == (2, 6)


@pytest.mark.parametrize("value", ["</s>", [2, "3"], [[2]], True, -7, 2.0, 2**31, 10**400])
def test_what_is_no_token_id_is_refused_by_name(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id: must be a token id"):
        end_tokens(tmp_path, 2, generation_config={"eos_token_id": value})


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("oops")
    with pytest.raises(ModelError, match=r"generation_config\.json is not valid JSON"):
        end_tokens(tmp_path)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_link_that_leads_nowhere_is_not_taken_for_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("gone")
    with pytest.raises(ModelError, match=f"{name} is a link to a file that does not exist"):
        end_tokens(tmp_path, 2)
