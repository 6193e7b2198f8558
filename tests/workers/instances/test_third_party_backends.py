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
from tests.support.workers.backend_examples import write, write_examples


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
    write_examples(tmp_path)
    async with repository_lab(tmp_path, {}, backend_directory=str(tmp_path / "backends")) as lab:
        spec = lab.service.spec_of("prices")
        assert (spec.max_batch_size, [output.dims for output in spec.outputs]) == (16, [(2,)])
        answers = await asyncio.gather(rows(lab, 1), rows(lab, 0, 1), rows(lab, 0))
        assert answers == [[[30, 40]], [[10, 20], [30, 40]], [[10, 20]]]
        with pytest.raises(InferError, match="there is no row 7") as raised:
            await rows(lab, 7)
        assert raised.value.code is InferErrorCode.INVALID_ARG


@in_loop
async def test_settings_of_a_backend_reach_it_and_it_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    write_examples(tmp_path)
    (tmp_path / "models" / "prices" / "config.pbtxt").write_text(
        'backend: "table" default_model_filename: "prices.csv" instance_group { count: 1 }'
    )
    backend = tmp_path / "backends" / "table"
    (backend / "table_backend.py").write_text((backend / "backend.py").read_text())
    (backend / "backend.py").write_text("from table_backend import complete, load\n")
    settings = {"backend_directory": str(tmp_path / "backends"), "backend_config": {"table": {"scale": "3"}}}
    async with repository_lab(tmp_path, {}, **settings) as lab:
        assert await rows(lab, 1) == [[9, 12]]


@in_loop
async def test_a_model_py_of_a_backend_serves_every_model_of_it(tmp_path: Path) -> None:
    write_examples(tmp_path)
    write(tmp_path / "models" / "plus_seven" / "1" / "number.json", "7")
    write(tmp_path / "models" / "plus_seven" / "config.pbtxt", 'backend: "adder"')
    async with repository_lab(tmp_path, {}, backend_directory=str(tmp_path / "backends")) as lab:
        assert await lab.infer("plus_five", 5) == [[10]]
        assert await lab.infer("plus_seven", 5, 6) == [[12, 13]]


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
