"""Backends that a directory has, in a served repository."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from tests.support.router.array_answers import infer_arrays
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab

# As in docs/how-to/backends.md: a table of numbers, which has the rows that a request asks for.
TABLE_BACKEND = '''
"""Backend `table`: the rows of a file of numbers."""

from dataclasses import dataclass

import numpy as np
import reading

from slipstream.workers.backends.backend import BackendError


def complete(model):
    width = table_of(model).shape[1]
    config = model.config
    config["max_batch_size"] = config["max_batch_size"] or 16
    config["input"] = [{"name": "ROW", "data_type": "TYPE_INT32", "dims": [1]}]
    config["output"] = [{"name": "VALUES", "data_type": "TYPE_FP32", "dims": [width]}]
    return config


def load(model):
    return Table(table_of(model), float(model.settings.get("scale", 1)))


def table_of(model):
    if not model.model_file.is_file():
        raise BackendError(f"there is no file {model.model_file}", "NOT_FOUND")
    return reading.read_table(model.model_file)


@dataclass
class Table:
    rows: np.ndarray
    scale: float

    def execute(self, inputs, wanted):
        asked = inputs["ROW"][:, 0]
        if asked.max() >= len(self.rows):
            raise BackendError(f"there is no row {asked.max()}", "INVALID_ARG")
        return {"VALUES": (self.rows * self.scale)[asked].astype(np.float32)}

    def close(self):
        pass
'''
READING = """
import numpy as np


def read_table(path):
    return np.loadtxt(path, delimiter=",", ndmin=2, dtype=np.float32)
"""
# A backend as Triton's python-based ones: its model.py serves every model of the backend.
GREETER = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from words import GREETING


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]})
        return config

    def initialize(self, args):
        file = os.path.join(args["model_repository"], args["model_version"], "number.txt")
        self.number = int(open(file).read()) + GREETING

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        outputs = [pb_utils.Tensor("OUT", (array + self.number).astype(np.int32)) for array in arrays]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_table_model(tmp_path: Path) -> None:
    write(tmp_path / "backends" / "table" / "backend.py", TABLE_BACKEND)
    write(tmp_path / "backends" / "table" / "reading.py", READING)
    write(tmp_path / "models" / "prices" / "1" / "prices.csv", "1,2\n3,4\n")
    write(
        tmp_path / "models" / "prices" / "config.pbtxt",
        'backend: "table" default_model_filename: "prices.csv" instance_group { count: 2 }',
    )


async def rows(lab: RepositoryLab, *asked: int) -> list[list[float]]:
    outputs = await infer_arrays(lab, "prices", {"ROW": np.array(asked, np.int32).reshape(-1, 1)})
    values: list[list[float]] = outputs["VALUES"].tolist()
    return values


def state_of(lab: RepositoryLab, model: str) -> tuple[str, str]:
    (entry,) = [one for one in lab.repository.index() if one.name == model]
    assert entry.phase is not None
    return entry.phase.value, entry.reason


@in_loop
async def test_a_backend_in_a_file_completes_loads_and_computes(tmp_path: Path) -> None:
    write_table_model(tmp_path)
    settings = {"backend_directory": str(tmp_path / "backends"), "backend_config": {"table": {"scale": "10"}}}
    async with repository_lab(tmp_path, {}, **settings) as lab:
        spec = lab.service.spec_of("prices")
        assert (spec.max_batch_size, [output.dims for output in spec.outputs]) == (16, [(2,)])
        answers = await asyncio.gather(rows(lab, 1), rows(lab, 0, 1), rows(lab, 0))
        assert answers == [[[30, 40]], [[10, 20], [30, 40]], [[10, 20]]]
        with pytest.raises(InferError, match="there is no row 7") as raised:
            await rows(lab, 7)
        assert raised.value.code is InferErrorCode.INVALID_ARG


@in_loop
async def test_a_model_py_of_a_backend_serves_every_model_of_it(tmp_path: Path) -> None:
    write(tmp_path / "backends" / "adder" / "model.py", GREETER)
    write(tmp_path / "backends" / "adder" / "words.py", "GREETING = 1000\n")
    for name, number in (("one", 1), ("two", 2)):
        write(tmp_path / "models" / name / "1" / "number.txt", str(number))
        write(tmp_path / "models" / name / "config.pbtxt", 'backend: "adder"')
    async with repository_lab(tmp_path, {}, backend_directory=str(tmp_path / "backends")) as lab:
        assert await lab.infer("one", 5) == [[1006]]
        assert await lab.infer("two", 5, 6) == [[1007, 1008]]


@in_loop
async def test_a_backend_that_cannot_be_imported_or_lacks_a_function_fails_its_models(tmp_path: Path) -> None:
    write(tmp_path / "backends" / "broken" / "backend.py", "raise RuntimeError('out of order')")
    write(tmp_path / "backends" / "half" / "backend.py", "def load(model): ...")
    for name in ("broken", "half"):
        write(tmp_path / "models" / name / "1" / "x", "")
        write(tmp_path / "models" / name / "config.pbtxt", f'backend: "{name}"')
    folder = tmp_path / "backends"
    async with repository_lab(tmp_path, {}, backend_directory=str(folder), exit_on_error=False) as lab:
        assert state_of(lab, "broken") == ("UNAVAILABLE", "Internal: RuntimeError: out of order")
        text = f"Invalid argument: backend 'half': {folder / 'half' / 'backend.py'} has no function 'complete'"
        assert state_of(lab, "half") == ("UNAVAILABLE", text)
