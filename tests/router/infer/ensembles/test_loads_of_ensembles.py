"""Loading and unloading of ensembles and of their models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import ModelPhase
from tests.support.router.ensemble_models import ADD_ONE, PLAIN, chain
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab

ONE = (PLAIN, ADD_ONE)
OTHER_TYPE = PLAIN.replace("INT32", "FP32")
BROKEN = """
raise ValueError("broken")
"""


def ready(lab: RepositoryLab) -> str:
    """The names of the models that serve."""
    return " ".join(entry.name for entry in lab.repository.index() if entry.phase is ModelPhase.READY)


@in_loop
async def test_loading_an_ensemble_loads_its_models(tmp_path: Path) -> None:
    models = {"a": ONE, "b": ONE, "c": ONE, "two": chain("a", "b"), "nested": chain("two", "a")}
    async with repository_lab(tmp_path, models, load_models=()) as lab:
        assert ready(lab) == ""
        await lab.repository.load("nested")
        assert ready(lab) == "a b nested two"
        assert await lab.infer("nested", 1) == [[4]]


@in_loop
async def test_ensembles_of_the_start_wait_for_their_models(tmp_path: Path) -> None:
    models = {f"e{number}": chain("z", "y") for number in range(6)}
    async with repository_lab(
        tmp_path, {**models, "y": ONE, "z": ONE}, control_mode="none", load_models=(), load_threads=2
    ) as lab:
        assert lab.repository.is_server_ready()
        assert await lab.infer("e5", 1) == [[3]]
        (one,) = lab.service.statistics("z")
        assert one.inference_count == 1


@in_loop
async def test_an_ensemble_serves_only_while_its_models_do(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"a": ONE, "b": ONE, "two": chain("a", "b")}) as lab:
        await lab.repository.unload("a")
        assert ready(lab) == "b"
        with pytest.raises(InferError, match="Request for unknown model: 'two' has no available versions"):
            lab.submit("two", 1)
        await lab.repository.load("a")
        assert ready(lab) == "a b two"
        assert await lab.infer("two", 1) == [[3]]
        await lab.repository.unload("two")
        await lab.repository.unload("a")
        await lab.repository.load("a")
        assert ready(lab) == "a b"


@in_loop
async def test_dependents_are_unloaded_that_nothing_else_needs(tmp_path: Path) -> None:
    models = {"a": ONE, "b": ONE, "c": ONE, "two": chain("a", "b"), "nested": chain("two", "c"), "other": chain("c")}
    async with repository_lab(tmp_path, models, load_models=()) as lab:
        for name in ("nested", "other", "a"):
            await lab.repository.load(name)
        assert ready(lab) == "a b c nested other two"
        await lab.repository.unload("nested", with_dependents=True)
        assert ready(lab) == "a c other"  # one by its name, one for another ensemble
        await lab.repository.unload("other")
        assert ready(lab) == "a c"


@in_loop
async def test_a_changed_model_is_checked_against_its_ensembles(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"a": ONE, "b": ONE, "two": chain("a", "b")}) as lab:
        lab.write("a", PLAIN, ADD_ONE.replace("+ 1", "+ 10"))
        await lab.repository.load("a")
        assert await lab.infer("two", 1) == [[12]]
        lab.write("a", OTHER_TYPE, ADD_ONE)
        await lab.repository.load("a")
        assert ready(lab) == "a b"
        lab.write("a", PLAIN, ADD_ONE)
        await lab.repository.load("a")
        assert await lab.infer("two", 1) == [[3]]


@in_loop
async def test_loading_an_ensemble_loads_models_of_it_that_have_changed(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"a": ONE, "b": ONE, "two": chain("a", "b")}) as lab:
        lab.write("a", PLAIN, ADD_ONE.replace("+ 1", "+ 10"))
        await lab.repository.load("two")
        assert await lab.infer("two", 1) == [[12]]


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ({"E": chain("no", "nor")}, "ensemble E contains models that are not available or ambiguous: no, nor"),
        (
            {"E": chain("a"), "a": (OTHER_TYPE, ADD_ONE)},
            "in ensemble E, ensemble tensor IN: inconsistent data type: TYPE_INT32 is inferred from model E while "
            "TYPE_FP32 is inferred from model a",
        ),
        ({"E": chain("F"), "F": chain("E")}, "circular dependency between ensembles: E -> ... -> F -> E"),
        (
            {"E": chain("a"), "a": (PLAIN, BROKEN)},
            "ensemble 'E' depends on 'a' which has no loaded version. Model 'a' loading failed with error: version 1 "
            "is at UNAVAILABLE state: Internal: ValueError: broken",
        ),
        (
            {"E": chain("F"), "F": chain("no")},
            "ensemble 'E' depends on 'F' which is not valid. Model 'F' failed with error: ensemble F contains models "
            "that are not available or ambiguous: no",
        ),
        (
            {"E": (chain("a")[0].replace("model_version: -1", "model_version: 3"), ""), "a": ONE},
            "ensemble 'E' depends on 'a' whose required version 3 is not loaded.",
        ),
    ],
)
@in_loop
async def test_an_ensemble_that_cannot_serve_says_why(
    tmp_path: Path, models: dict[str, tuple[str, str]], text: str
) -> None:
    async with repository_lab(tmp_path, models, load_models=()) as lab:
        with pytest.raises(InferError) as failure:
            await lab.repository.load("E")
        assert failure.value.message.startswith(f"load failed for model 'E': {text}")
        (entry,) = [entry for entry in lab.repository.index() if entry.name == "E"]
        assert (entry.phase, entry.reason[: len(text)]) == (ModelPhase.UNAVAILABLE, text)


@in_loop
async def test_an_ensemble_comes_back_when_the_model_is_loaded_that_it_lacked(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"a": (PLAIN, BROKEN), "E": chain("a")}, load_models=()) as lab:
        with pytest.raises(InferError):
            await lab.repository.load("E")
        lab.write("a", PLAIN, ADD_ONE)
        await lab.repository.load("a")
        assert await lab.infer("E", 1) == [[2]]


@in_loop
async def test_a_poll_loads_an_ensemble_again_when_its_models_come_change_and_go(tmp_path: Path) -> None:
    models = {"b": ONE, "two": chain("a", "b")}
    polled = {"control_mode": "poll", "load_models": (), "poll_s": 3600.0, "exit_on_error": False}
    async with repository_lab(tmp_path, models, **polled) as lab:
        assert ready(lab) == "b"
        lab.write("a", *ONE)
        await lab.repository.poll_once()
        assert ready(lab) == "a b two"
        assert await lab.infer("two", 1) == [[3]]
        lab.write("a", PLAIN, ADD_ONE.replace("+ 1", "+ 10"))
        await lab.repository.poll_once()
        assert await lab.infer("two", 1) == [[12]]
        shutil.rmtree(lab.folder / "a")
        await lab.repository.poll_once()
        assert ready(lab) == "b"
