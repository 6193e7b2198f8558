"""Which files of a source are fetched."""

from __future__ import annotations

import json

import pytest

from slipstream.router.model_files.cache.version_plan import plan_version
from slipstream.router.model_files.sources.weights_source import SourceRefused
from tests.support.router.model_sources import MemorySource

INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()


def names_of(files: dict[str, bytes], number: str | None = None) -> list[str]:
    source = MemorySource(files)
    plan = plan_version(source, number)
    return sorted(plan.local_name(file) for file in plan.files)


def test_only_what_a_model_is_read_for_is_fetched() -> None:
    files = {
        "config.json": b"{}",
        "model.safetensors": b"w",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"",
        "additional_chat_templates/tool.jinja": b"",
        "README.md": b"",
        "pytorch_model.bin": b"",
        "onnx/model.onnx": b"",
        "original/consolidated.00.pth": b"",
        "flax_model.msgpack": b"",
    }
    assert names_of(files) == [
        "additional_chat_templates/tool.jinja",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_the_files_that_an_index_names_are_fetched() -> None:
    files = {"config.json": b"{}", "model.safetensors.index.json": INDEX, "other.safetensors": b""}
    shards = {"model-1.safetensors": b"1", "model-2.safetensors": b"2"}
    assert names_of(files | shards) == [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
    ]
    with pytest.raises(SourceRefused, match=r"s3://bucket/model: model-1\.safetensors is missing, though model\.safe"):
        plan_version(MemorySource(files), None)


@pytest.mark.parametrize("name", ["../../etc/passwd", "model.bin", "a/b.safetensors"])
def test_an_index_cannot_name_other_files(name: str) -> None:
    index = json.dumps({"weight_map": {"a": name}}).encode()
    with pytest.raises(SourceRefused, match=r"only \.safetensors files are loaded"):
        plan_version(MemorySource({"config.json": b"", "model.safetensors.index.json": index, name: b""}), None)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": b"", "pytorch_model.bin": b""}, "only pytorch_model.bin; other formats can run code"),
        ({"config.json": b""}, "has neither model.safetensors nor model.safetensors.index.json"),
        ({"adapter_config.json": b""}, "there is no config.json: it is an adapter"),
        ({"README.md": b""}, "there is no config.json"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(files: dict[str, bytes], words: str) -> None:
    with pytest.raises(SourceRefused) as refused:
        plan_version(MemorySource(files), None)
    assert str(refused.value).startswith("s3://bucket/model: ")
    assert words in str(refused.value)


def test_a_numbered_folder_is_chosen_as_in_a_directory() -> None:
    files = {f"{number}/{name}": b"{}" for number in (1, 2, 10) for name in ("config.json", "model.safetensors")}
    plan = plan_version(MemorySource(files), None)
    assert plan.folder == "10"
    assert [plan.local_name(file) for file in plan.files] == ["config.json", "model.safetensors"]
    assert plan_version(MemorySource(files), "2").folder == "2"
    with pytest.raises(SourceRefused, match="there is no folder '3'; there are 1, 2, 10"):
        plan_version(MemorySource(files), "3")


def test_a_version_is_another_one_when_a_file_that_is_fetched_is() -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w", "README.md": b"1"}
    version = plan_version(MemorySource(files), None).version
    assert plan_version(MemorySource(files | {"README.md": b"2"}), None).version == version
    assert plan_version(MemorySource(files | {"model.safetensors": b"v"}), None).version != version
