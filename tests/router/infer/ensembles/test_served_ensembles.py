"""Ensembles of a repository, served by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from tests.support.router.ensemble_models import (
    ADD_ONE,
    COUNT_UP,
    DECOUPLED,
    PLAIN,
    chain,
)
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import repository_lab

ONE = {"one": (PLAIN, ADD_ONE)}


@in_loop
async def test_three_steps_run_one_after_the_other(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {**ONE, "three": chain("one", "one", "one")}) as lab:
        assert await lab.infer("three", 1, 2) == [[4, 5]]
        with pytest.raises(InferError, match=r"^in ensemble 'three', thirteen$") as failure:
            await lab.infer("three", 12)
        assert failure.value.code is InferErrorCode.INVALID_ARG


@in_loop
async def test_each_response_of_a_decoupled_step_runs_the_rest(tmp_path: Path) -> None:
    models = {**ONE, "count": (DECOUPLED, COUNT_UP), "counts": chain("one", "count", "one")}
    async with repository_lab(tmp_path, models) as lab:
        assert await lab.infer("counts", 3) == [[1], [2], [3], [4]]
        assert lab.service.spec_of("counts").is_decoupled
