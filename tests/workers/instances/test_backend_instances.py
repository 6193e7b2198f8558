"""Models of backends in a served repository, with instances in processes of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import orjson
import torch

from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import TIMEOUT_S, Answers, RepositoryLab, repository_lab
from tests.support.workers.onnx_models import write_add_sub, write_onnx

Array = np.ndarray[Any, Any]


class Outputs(Answers):
    """ResponseReceiver: the first response, by the names of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, Array] = {}

    def respond(self, response: Any, *, is_final: bool) -> None:
        for tensor in response.outputs:
            self.arrays[tensor.name] = np.frombuffer(bytes(tensor.view), np.float32).reshape(tensor.shape)
        super().respond(response, is_final=is_final)


async def infer(lab: RepositoryLab, model: str, **inputs: Array) -> dict[str, Array]:
    """Raises InferError."""
    answers = Outputs()
    given = [Tensor(name, "FP32", array.shape, array.tobytes()) for name, array in inputs.items()]
    lab.service.submit(InferRequest(model, inputs=given), answers)
    async with asyncio.timeout(TIMEOUT_S):
        await answers.ended.wait()
    if answers.error is not None:
        raise answers.error
    return answers.arrays


def state_of(lab: RepositoryLab, model: str) -> tuple[str, str]:
    (entry,) = [one for one in lab.repository.index() if one.name == model]
    assert entry.phase is not None
    return entry.phase.value, entry.reason


@in_loop
async def test_an_onnx_file_without_a_configuration_is_served(tmp_path: Path) -> None:
    write_add_sub(tmp_path / "models" / "add_sub" / "1" / "model.onnx")
    async with repository_lab(tmp_path, {}, backend_config={"onnxruntime": {"default-max-batch-size": "6"}}) as lab:
        spec = lab.service.spec_of("add_sub")
        assert (spec.platform, spec.max_batch_size) == ("onnxruntime_onnx", 6)
        assert [(group.count, group.kind) for group in spec.instance_groups] == [(2, "KIND_CPU")]
        assert orjson.loads(spec.config_json)["dynamic_batching"]["preferred_batch_size"] == [6]
        rows = np.arange(8, dtype=np.float32).reshape(2, 4)
        many = await asyncio.gather(*(infer(lab, "add_sub", A=rows * n, B=rows) for n in range(20)))
        for n, outputs in enumerate(many):
            np.testing.assert_array_equal(outputs["SUM"], rows * (n + 1))
            np.testing.assert_array_equal(outputs["DIFF"], rows * (n - 1))
        (statistics,) = lab.service.statistics("add_sub")
        assert statistics.inference_count == 40
        assert statistics.execution_count < 20


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@in_loop
async def test_large_tensors_of_a_torch_model_go_through_shared_memory(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "double"
    (folder / "1").mkdir(parents=True)
    traced = torch.jit.trace(torch.nn.Threshold(-1e9, 0.0), torch.zeros(1, 4))  # type: ignore[no-untyped-call]
    traced.save(str(folder / "1" / "model.pt"))
    (folder / "config.pbtxt").write_text(
        'backend: "pytorch" max_batch_size: 4 input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } '
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }'
    )
    async with repository_lab(tmp_path, {}) as lab:
        rows = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
        for outputs in await asyncio.gather(*(infer(lab, "double", INPUT__0=rows + n) for n in range(3))):
            assert outputs["OUTPUT__0"].shape == rows.shape
            assert outputs["OUTPUT__0"][0, 1] - outputs["OUTPUT__0"][0, 0] == 1


@in_loop
async def test_a_file_that_does_not_fit_its_configuration_fails_the_load(tmp_path: Path) -> None:
    write_add_sub(tmp_path / "models" / "add_sub" / "1" / "model.onnx")
    (tmp_path / "models" / "add_sub" / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } '
        'output { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }'
    )
    async with repository_lab(tmp_path, {}, exit_on_error=False) as lab:
        assert state_of(lab, "add_sub") == (
            "UNAVAILABLE",
            "Invalid argument: unable to load model 'add_sub', configuration expects 1 inputs, model provides 2",
        )


@in_loop
async def test_a_failing_batch_counts_as_failed_and_the_instance_goes_on(tmp_path: Path) -> None:
    write_onnx(
        tmp_path / "models" / "add" / "1" / "model.onnx",
        [("Add", ["A", "B"], ["SUM"])],
        [("A", "FP32", ["n", "a"]), ("B", "FP32", ["n", "b"])],
        [("SUM", "FP32", ["n", "c"])],
    )
    async with repository_lab(tmp_path, {}) as lab:
        with pytest.raises(InferError, match=r"^onnx runtime error") as raised:
            await infer(lab, "add", A=np.ones((1, 2), np.float32), B=np.ones((1, 3), np.float32))
        assert raised.value.code is InferErrorCode.INTERNAL
        outputs = await infer(lab, "add", A=np.ones((1, 2), np.float32), B=np.ones((1, 2), np.float32))
        np.testing.assert_array_equal(outputs["SUM"], [[2, 2]])
        (statistics,) = lab.service.statistics("add")
        assert (statistics.durations.fail.count, statistics.durations.success.count) == (1, 1)


@in_loop
async def test_a_model_of_a_package_that_is_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden" / "onnxruntime"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('no', name='onnxruntime')")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    write_add_sub(tmp_path / "models" / "add_sub" / "1" / "model.onnx")
    async with repository_lab(tmp_path, {}, exit_on_error=False) as lab:
        assert state_of(lab, "add_sub")[1] == (
            "Unavailable: backend 'onnxruntime' needs the package onnxruntime, which is not installed: "
            "pip install 'slipstream[onnx]'"
        )
