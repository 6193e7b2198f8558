"""Two ranks, as two processes over gloo, compute what one computes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.model_loader import load_model
from tests.support.workers import tensor_parallel_rank
from tests.support.workers.any_model import EXPERT_PARALLEL, KINDS
from tests.support.workers.tiny_models import FAMILIES, build_tiny_model

ROOT = Path(__file__).parents[3]


class OtherRank:
    """Stands in for a process group that is never spoken to."""


def lone_rank(rank: int, size: int) -> TensorParallel:
    return TensorParallel(rank, size, OtherRank())  # type: ignore[arg-type]


def run_ranks(
    size: int, kinds: tuple[str, ...], model_dirs: list[Path], tmp_path: Path
) -> list[dict[Any, torch.Tensor | None]]:
    script = Path(tensor_parallel_rank.__file__)
    files = [str(tmp_path / "rendezvous"), str(tmp_path / "results")]
    arguments = [str(size), *files, ",".join(kinds), *map(str, model_dirs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, script, str(rank), *arguments], env=environment) for rank in range(size)]
    try:
        assert [rank.wait(timeout=90) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(tmp_path / f"results.{rank}") for rank in range(size)]


def with_experts(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """And with whole experts dealt out."""
    return (*kinds, *(f"{kind}{EXPERT_PARALLEL}" for kind in kinds))


def test_two_ranks_compute_the_logits_of_one(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    model_dirs = [tiny_model_dir(family) for family in FAMILIES]
    kinds = with_experts(KINDS if native_library() else ("torch",))
    first, second = run_ranks(2, kinds, model_dirs, tmp_path)
    assert set(second.values()) == {None}
    for kind, model_dir in product(kinds, model_dirs):
        if (kind, str(model_dir), torch.float32) not in first:
            continue
        alone = tensor_parallel_rank.run(kind, str(model_dir), torch.float32, TensorParallel())
        together, rounded = (first[kind, str(model_dir), dtype] for dtype in (torch.float32, torch.bfloat16))
        assert alone is not None
        assert together is not None
        assert rounded is not None
        torch.testing.assert_close(together, alone, atol=2e-4, rtol=2e-4)
        assert torch.equal(together.argmax(-1), alone.argmax(-1))
        rounded_alone = tensor_parallel_rank.run(kind, str(model_dir), torch.bfloat16, TensorParallel())
        assert rounded_alone is not None
        assert median_error(rounded, alone) < 1.5 * median_error(rounded_alone, alone)


def median_error(rounded: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Of a token. The mean would be that of tokens for which a rounding has chosen another expert."""
    return (rounded - exact).abs().mean(-1).median()


def test_ranks_hold_their_share_and_no_more(tiny_model_dir: Callable[[str], Path]) -> None:
    whole = load_model(tiny_model_dir("llama")).decoder.weights
    shares = [load_model(tiny_model_dir("llama"), tp=lone_rank(rank, 2)).decoder.weights for rank in range(2)]
    assert [share.embedding.shape[0] for share in shares] == [130, 130]  # of 259, the last row is padding
    assert not shares[1].embedding[-1].any()
    assert torch.equal(torch.cat([share.embedding for share in shares])[:259], whole.embedding)
    for of_whole, of_first, of_second in zip(whole.layers, shares[0].layers, shares[1].layers, strict=True):
        down = torch.cat([of_first.down.weight.to_dense(), of_second.down.weight.to_dense()], dim=1)
        assert torch.equal(down, of_whole.down.weight.to_dense())
        assert of_first.qkv.weight.shape == of_second.qkv.weight.shape == (64, 64)


@pytest.mark.parametrize(
    ("overrides", "degree", "named"),
    [
        ({"num_key_value_heads": 2}, 4, "tensor parallel degree 4 does not divide num_key_value_heads = 2"),
        ({"num_attention_heads": 4}, 3, "tensor parallel degree 3 does not divide num_attention_heads = 4"),
        ({"intermediate_size": 95}, 2, "tensor parallel degree 2 does not divide intermediate_size = 95"),
    ],
)
def test_degrees_that_do_not_divide_the_model_are_refused(
    overrides: dict[str, int], degree: int, named: str, tmp_path: Path
) -> None:
    model_dir = build_tiny_model("llama", tmp_path, **overrides)
    with pytest.raises(ModelError, match=named):
        load_model(model_dir, tp=lone_rank(0, degree))


def test_pool_of_a_rank_holds_its_kv_heads(tiny_model_dir: Callable[[str], Path]) -> None:
    config = ModelConfig.read(tiny_model_dir("llama"))
    assert kv_shape(config, TensorParallel(), 10, 16) == (3, 10, 2, 2, 16, 16)
    assert kv_shape(config, lone_rank(1, 2), 10, 16) == (3, 10, 1, 2, 16, 16)
    with pytest.raises(ModelError, match="does not divide num_key_value_heads = 2"):
        kv_shape(config, lone_rank(0, 4), 10, 16)


def test_a_group_of_several_needs_a_process_group() -> None:
    with pytest.raises(ValueError, match="needs a process group"):
        TensorParallel(0, 2)
    with pytest.raises(ValueError, match="rank must be in"):
        lone_rank(2, 2)
