"""Which version of a model serves, while others load, fail and leave."""

from __future__ import annotations

import pytest

from slipstream.router.infer.model_versions import ModelVersions, version_of
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import IndexEntry
from slipstream.router.tensors.model_spec import ModelPhase


def loaded(*versions: str) -> ModelVersions[str]:
    model: ModelVersions[str] = ModelVersions("M")
    model.begin_load(versions)
    model.serve({version: f"first {version}" for version in versions})
    return model


def test_the_highest_version_serves_requests_that_name_none() -> None:
    model = loaded("2", "10")
    assert model.find() == "first 10"
    assert model.find("2") == "first 2"


def test_a_reload_leaves_the_versions_before_until_it_has_succeeded() -> None:
    model = loaded("1")
    model.begin_load(["1", "2"])
    assert model.find() == "first 1"
    assert [entry.phase for entry in model.entries()] == [ModelPhase.READY, ModelPhase.LOADING]
    assert model.serve({"1": "second 1", "2": "second 2"}) == ["first 1"]
    assert model.find("1") == "second 1"
    model.ended("1", "first 1")
    assert [entry.phase for entry in model.entries()] == [ModelPhase.READY, ModelPhase.READY]


def test_a_failed_reload_changes_nothing_but_the_new_versions() -> None:
    model = loaded("1")
    model.begin_load(["1", "2"])
    model.fail_load(["1", "2"], {"2": "Internal: no"})
    assert model.find() == "first 1"
    assert model.entries()[1] == IndexEntry("M", "2", ModelPhase.UNAVAILABLE, "Internal: no")
    assert model.has_failed


def test_versions_that_a_load_does_not_have_are_unloaded() -> None:
    model = loaded("1", "2")
    model.begin_load(["3"])
    assert model.serve({"3": "second 3"}) == ["first 1", "first 2"]
    assert [entry.phase for entry in model.entries()] == [
        ModelPhase.UNLOADING,
        ModelPhase.UNLOADING,
        ModelPhase.READY,
    ]
    model.ended("1", "first 1")
    assert model.entries()[0] == IndexEntry("M", "1", ModelPhase.UNAVAILABLE, "unloaded")
    assert not model.has_failed


def test_an_unloaded_model_is_not_found() -> None:
    model = loaded("1")
    assert model.unload() == ["first 1"]
    with pytest.raises(InferError, match="Request for unknown model: 'M' has no available versions") as caught:
        model.find()
    assert caught.value.code is InferErrorCode.NOT_FOUND
    with pytest.raises(InferError, match="'M' version 1 is not at ready state"):
        model.find("1")
    with pytest.raises(InferError, match="'M' version 3 is not found"):
        model.find("3")
    assert not model.is_idle
    model.ended("1", "first 1")
    assert model.is_idle


@pytest.mark.parametrize(("text", "version"), [("", ""), ("-1", ""), ("3", "3"), ("03", "3")])
def test_versions_are_numbers(text: str, version: str) -> None:
    assert version_of(text) == version


def test_a_version_that_is_no_number_is_refused() -> None:
    with pytest.raises(InferError, match="failed to get model version from specified version string 'x'"):
        version_of("x")
    with pytest.raises(InferError):
        version_of("1" * 5000)


def test_a_version_that_a_load_keeps_goes_on() -> None:
    model = loaded("1", "2")
    model.begin_load(["2", "3"])
    assert model.serve({"2": model.find("2"), "3": "second 3"}) == ["first 1"]
    assert model.find("2") == "first 2"
    assert [entry.phase for entry in model.entries(only_ready=True)] == [ModelPhase.READY, ModelPhase.READY]


def test_a_model_that_failed_to_load_has_not_failed_any_more_once_it_is_unloaded() -> None:
    model: ModelVersions[str] = ModelVersions("M")
    model.begin_load(["1"])
    model.fail_load(["1"], {"1": "Internal: no"})
    assert model.has_failed
    assert model.unload() == []
    assert not model.has_failed
