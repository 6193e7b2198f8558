"""The backend of decision trees, in the place of `fil`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("joblib")
pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")
pytest.importorskip("xgboost")

import lightgbm
import xgboost
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from slipstream.workers.backends.backend import BackendError, ModelContext
from slipstream.workers.backends.trees import backend
from tests.support.workers.model_contexts import context_of
from tests.workers.backends.contract import BackendContract, Sample

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(7)
ROWS = RANDOM.normal(size=(60, 4)).astype(np.float32)
SUMS = ROWS.sum(axis=1)
BINARY = (SUMS > 0).astype(np.int32)
THREE = np.digitize(SUMS, (-1.0, 1.0))


@cache
def booster(objective: str, num_classes: int = 0) -> Any:
    labels = SUMS if objective.startswith("reg") else THREE if num_classes else BINARY
    settings = {"objective": objective, "max_depth": 3, "nthread": 1}
    if num_classes:
        settings["num_class"] = num_classes
    return xgboost.train(settings, xgboost.DMatrix(ROWS, labels), num_boost_round=5)


@cache
def light(objective: str, num_classes: int = 1) -> Any:
    labels = THREE if num_classes > 1 else BINARY if objective == "binary" else SUMS
    settings = {
        "objective": objective,
        "num_class": num_classes,
        "verbose": -1,
        "num_threads": 1,
        "min_data_in_leaf": 5,
    }
    return lightgbm.train(settings, lightgbm.Dataset(ROWS, labels), num_boost_round=5)


def save_xgboost(path: Path) -> Array:
    booster("binary:logistic").save_model(path)
    return np.asarray(booster("binary:logistic").inplace_predict(ROWS))


def save_lightgbm(path: Path) -> Array:
    light("binary").save_model(path)
    return np.asarray(light("binary").predict(ROWS), np.float32)


def save_sklearn(path: Path) -> Array:
    forest = RandomForestClassifier(5, max_depth=3, random_state=1).fit(ROWS, BINARY)
    path.write_bytes(pickle.dumps(forest))
    return np.asarray(forest.predict_proba(ROWS)[:, 1], np.float32)


KINDS: dict[str, tuple[str, Callable[[Path], Array]]] = {
    "xgboost_json": ("xgboost.json", save_xgboost),
    "xgboost_ubj": ("xgboost.ubj", save_xgboost),
    "lightgbm": ("model.txt", save_lightgbm),
    "sklearn_pickle": ("model.pkl", save_sklearn),
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the backend sets for its process."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")


class TreeContract(BackendContract):
    backend = backend
    kind: str

    def sample(self, folder: Path) -> Sample:
        name, save = KINDS[self.kind]
        expected = save(folder / name)
        model = context_of(
            folder / name,
            [("input__0", "FP32", [4])],
            [("output__0", "FP32", [1])],
            parameters={"model_type": self.kind, "output_class": "false"},
        )
        return Sample(model, {"input__0": ROWS[:5]}, {"output__0": expected[:5].reshape(-1, 1)})


class TestXgboostContract(TreeContract):
    kind = "xgboost_json"


class TestLightgbmContract(TreeContract):
    kind = "lightgbm"


class TestSklearnContract(TreeContract):
    kind = "sklearn_pickle"


def outputs_of(model: ModelContext, rows: Array = ROWS) -> Array:
    loaded = backend.load(model)
    try:
        return np.asarray(loaded.execute({"input__0": rows}, ["output__0"])["output__0"])
    finally:
        loaded.close()


def bare(file: Path, kind: str, **parameters: str) -> ModelContext:
    """A configuration that says nothing of inputs and outputs."""
    return context_of(file, max_batch_size=0, parameters={"model_type": kind, **parameters})


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_the_second_one_above_the_threshold(tmp_path: Path, kind: str) -> None:
    name, save = KINDS[kind]
    probability = save(tmp_path / name)
    for threshold in (0.5, 0.8):
        model = bare(tmp_path / name, kind, output_class="true", threshold=str(threshold))
        backend.complete(model)
        assert model.config["output"] == [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [1]}]
        classes = outputs_of(model)
        assert classes.dtype == np.float32
        np.testing.assert_array_equal(classes[:, 0], probability > threshold)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_of_two_classes(tmp_path: Path, kind: str) -> None:
    name, save = KINDS[kind]
    probability = save(tmp_path / name)
    model = bare(tmp_path / name, kind, output_class="true", predict_proba="true")
    backend.complete(model)
    outputs = outputs_of(model)
    np.testing.assert_allclose(outputs, np.stack((1 - probability, probability), axis=1), atol=1e-6)
    model.config["output"][0]["dims"] = [1]  # as configurations of fil may have it
    np.testing.assert_allclose(outputs_of(model), outputs[:, 1:])


def save_three_classes(folder: Path, kind: str) -> tuple[Path, Array]:
    path = folder / KINDS[kind][0]
    if kind == "lightgbm":
        light("multiclass", 3).save_model(path)
        return path, np.asarray(light("multiclass", 3).predict(ROWS))
    if kind == "sklearn_pickle":
        forest = RandomForestClassifier(5, max_depth=3, random_state=1).fit(ROWS, THREE)
        path.write_bytes(pickle.dumps(forest))
        return path, np.asarray(forest.predict_proba(ROWS))
    booster("multi:softmax", 3).save_model(path)  # says the class only; the file has all that probabilities need
    return path, np.asarray(booster("multi:softprob", 3).inplace_predict(ROWS))


@pytest.mark.parametrize("kind", KINDS)
def test_three_classes(tmp_path: Path, kind: str) -> None:
    path, probabilities = save_three_classes(tmp_path, kind)
    probable = bare(path, kind, predict_proba="true")
    backend.complete(probable)
    assert probable.config["output"][0]["dims"] == [3]
    np.testing.assert_allclose(outputs_of(probable), probabilities, atol=1e-6)
    for name in ("output_class", "is_classifier"):
        classes = bare(path, kind, **{name: "true"})
        backend.complete(classes)
        np.testing.assert_array_equal(outputs_of(classes), np.argmax(probabilities, axis=1).reshape(-1, 1))


def test_a_regression_is_what_the_trees_say(tmp_path: Path) -> None:
    booster("reg:squarederror").save_model(tmp_path / "xgboost.json")
    light("regression").save_model(tmp_path / "model.txt")
    forest = RandomForestRegressor(5, random_state=1).fit(ROWS, np.stack((SUMS, -SUMS), axis=1))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(forest))
    for kind, expected in (
        ("xgboost_json", booster("reg:squarederror").inplace_predict(ROWS).reshape(-1, 1)),
        ("lightgbm", light("regression").predict(ROWS).reshape(-1, 1)),
        ("skl", forest.predict(ROWS)),
    ):
        dims = [expected.shape[1]]
        # No file is named: each type has its own.
        model = context_of(
            tmp_path, [("input__0", "FP32", [4])], [("output__0", "FP64", dims)], parameters={"model_type": kind}
        )
        np.testing.assert_allclose(outputs_of(model), expected, atol=1e-5)


def test_many_rows_are_computed_by_several_threads_as_few_are_by_one(tmp_path: Path) -> None:
    save_xgboost(tmp_path / "xgboost.json")
    save_lightgbm(tmp_path / "model.txt")
    many = np.tile(ROWS, (20, 1))
    for kind in ("xgboost_json", "lightgbm"):
        model = bare(tmp_path / KINDS[kind][0], kind, num_threads="2")
        backend.complete(model)
        loaded = backend.load(model)
        few, all_rows, again = (
            loaded.execute({"input__0": rows}, ["output__0"])["output__0"] for rows in (ROWS, many, ROWS)
        )
        np.testing.assert_array_equal(all_rows, np.tile(few, (20, 1)))
        np.testing.assert_array_equal(again, few)


def test_a_missing_value_takes_its_own_branch(tmp_path: Path) -> None:
    save_xgboost(tmp_path / "xgboost.json")
    model = bare(tmp_path / "xgboost.json", "xgboost_json")
    backend.complete(model)
    rows = ROWS[:2].copy()
    rows[0, 1] = np.nan
    expected = booster("binary:logistic").inplace_predict(rows)
    np.testing.assert_allclose(outputs_of(model, rows)[:, 0], expected)


def test_a_completed_configuration_batches_many_rows(tmp_path: Path) -> None:
    save_xgboost(tmp_path / "xgboost.json")
    model = bare(tmp_path / "xgboost.json", "xgboost_json")
    config = backend.complete(model)
    assert (config["max_batch_size"], config["dynamic_batching"]) == (8192, {})
    assert config["input"] == [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [4]}]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"model_type": "cuml"}, "model_type must be one of xgboost, .*, got 'cuml'"),
        ({"model_type": "treelite_checkpoint"}, "checkpoints of Treelite are not served"),
        ({"output_class": "true"}, "output_class is true, but the model in the file has no classes"),
        ({"threshold": "half"}, "threshold must be a number, got 'half'"),
        ({"predict_proba": "perhaps"}, "predict_proba must be true or false, got 'perhaps'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(tmp_path: Path, parameters: dict[str, str], text: str) -> None:
    booster("reg:squarederror").save_model(tmp_path / "xgboost.json")
    inputs, outputs = [("input__0", "FP32", [4])], [("output__0", "FP32", [1])]
    given = {"model_type": "xgboost_json", **parameters}
    with pytest.raises(BackendError, match=f"model 'm': {text}"):
        backend.load(context_of(tmp_path / "xgboost.json", inputs, outputs, parameters=given))


@pytest.mark.parametrize(
    ("num_features", "num_columns", "datatype", "text"),
    [
        (5, 1, "FP32", r"input 'input__0' has dims \[5\], model has 4 features"),
        (4, 3, "FP32", "output 'output__0' has 3 columns, model provides 1"),
        (4, 1, "INT32", "'input__0' must be TYPE_FP32 or TYPE_FP64, got TYPE_INT32"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    tmp_path: Path, num_features: int, num_columns: int, datatype: str, text: str
) -> None:
    booster("reg:squarederror").save_model(tmp_path / "xgboost.json")
    inputs, outputs = [("input__0", datatype, [num_features])], [("output__0", "FP32", [num_columns])]
    parameters = {"model_type": "xgboost_json"}
    with pytest.raises(BackendError, match=f"unable to load model 'm', {text}"):
        backend.load(context_of(tmp_path / "xgboost.json", inputs, outputs, parameters=parameters))
