"""General models on two ranks, as two processes over gloo, compute what they compute on one; and pages that one layout
has filled serve the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import check_tp
from slipstream.workers.models.general.describe import describe
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from tests.support.workers import general_run
from tests.support.workers.general_models import build_general_model
from tests.support.workers.general_run import CHUNKS, SINGLE, GeneralRun

ROOT = Path(__file__).parents[4]
DEALT_OUT = ("gemma2", "gpt_oss", "granite_swa", "deepseek_v3")


def test_two_ranks_compute_what_one_does_and_take_over_pages_from_one_another(tmp_path: Path) -> None:
    model_dirs = [build_general_model(kind, tmp_path / kind) for kind in DEALT_OUT]
    runs = {str(model_dir): GeneralRun.load(model_dir, torch.float32, TensorParallel()) for model_dir in model_dirs}
    pools = {name: run.empty_pool() for name, run in runs.items()}
    prefilled = {name: run.run(pools[name], CHUNKS) for name, run in runs.items()}
    torch.save(pools, tmp_path / "pools")
    decoded = {name: run.run(pools[name], SINGLE) for name, run in runs.items()}
    first, second = _run_ranks(2, [str(tmp_path / "pools"), *runs], tmp_path)
    for name, run in runs.items():
        assert second[name][:3] == (None, None, None)
        handed_on = torch.cat((first[name][3], second[name][3]), dim=2)
        over_pages_of_two = run.run(handed_on, SINGLE)
        for found, expected in (
            (first[name][0], prefilled[name]),
            (first[name][1], decoded[name]),
            (first[name][2], decoded[name]),
            (over_pages_of_two, decoded[name]),
        ):
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
            assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize(
    ("kind", "overrides", "degree", "named"),
    [
        ("gpt2", {}, 2, "transformers has no tensor-parallel plan for GPT2LMHeadModel"),
        ("llama", {}, 4, "does not divide num_key_value_heads = 2"),
        ("llama", {"intermediate_size": 95}, 2, r"does not divide model.layers.*gate_proj.weight = 95"),
        ("qwen3_moe", {"num_experts": 7}, 2, r"does not divide experts of model.layers.*mlp.experts = 7"),
    ],
)
def test_degrees_that_do_not_divide_the_model_are_refused(
    kind: str, overrides: dict[str, int], degree: int, named: str, tmp_path: Path
) -> None:
    spec = describe(build_general_model(kind, tmp_path, **overrides))
    with pytest.raises(ModelError, match=named):
        check_tp(spec, degree)


def _run_ranks(
    size: int, arguments: list[str], tmp_path: Path
) -> list[dict[str, tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor]]]:
    script = Path(general_run.__file__)
    files = [str(tmp_path / "rendezvous"), str(tmp_path / "results")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(size), *files, *arguments], env=environment)
        for rank in range(size)
    ]
    try:
        assert [rank.wait(timeout=90) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(tmp_path / f"results.{rank}") for rank in range(size)]
