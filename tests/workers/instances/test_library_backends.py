"""Models of decision trees and of OpenVINO in a served repository."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.support.router.array_answers import infer_arrays
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import repository_lab


@in_loop
async def test_trees_are_served_with_few_words_of_configuration(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(rows, rows[:, 0] > 0), num_boost_round=3)
    (tmp_path / "models" / "trees" / "1").mkdir(parents=True)
    booster.save_model(tmp_path / "models" / "trees" / "1" / "xgboost.json")
    (tmp_path / "models" / "trees" / "config.pbtxt").write_text(
        'backend: "fil" parameters { key: "model_type" value { string_value: "xgboost_json" } } '
        'parameters { key: "predict_proba" value { string_value: "true" } }'
    )
    async with repository_lab(tmp_path, {}) as lab:
        spec = lab.service.spec_of("trees")
        assert (spec.max_batch_size, spec.outputs[0].dims) == (8192, (2,))
        parts = np.split(rows, 20)
        outputs = await asyncio.gather(*(infer_arrays(lab, "trees", {"input__0": part}) for part in parts))
        found = np.concatenate([one["output__0"] for one in outputs])
        np.testing.assert_allclose(found[:, 1], booster.inplace_predict(rows), rtol=1e-6)
        (statistics,) = lab.service.statistics("trees")
        assert (statistics.inference_count, statistics.execution_count < 20) == (40, True)


@in_loop
async def test_an_openvino_file_without_a_configuration_is_served(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    from tests.support.workers.openvino_models import add_sub, write_openvino

    write_openvino(tmp_path / "models" / "add_sub" / "1" / "model.xml", add_sub())
    async with repository_lab(tmp_path, {}) as lab:
        spec = lab.service.spec_of("add_sub")
        assert (spec.backend, spec.max_batch_size) == ("openvino", 4)
        rows = np.arange(8, dtype=np.float32).reshape(2, 4)
        many = await asyncio.gather(*(infer_arrays(lab, "add_sub", {"A": rows * n, "B": rows}) for n in range(8)))
        for n, outputs in enumerate(many):
            np.testing.assert_array_equal(outputs["SUM"], rows * (n + 1))
            np.testing.assert_array_equal(outputs["DIFF"], rows * (n - 1))
