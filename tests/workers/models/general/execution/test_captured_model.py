"""General models as graphs of native calls compute what their own modules do."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.general.describe import describe
from slipstream.workers.models.general.execution.captured_model import CapturedModel
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.general_loader import load_general
from slipstream.workers.models.general.graph.capture import capture
from slipstream.workers.models.general.graph.recorder import NotCapturedError
from slipstream.workers.models.general.self_check import GeneralModel
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.model import GreedyModel
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from tests.support.workers.general_models import build_general_model

PAGE_TOKENS = 8
PAGES_OF_SEQUENCE = 8


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = native_library()
    if found is None:
        pytest.skip("no native kernels here")
    return found


def load(
    model_dir: Path,
    library: ctypes.CDLL | None,
    dtype: torch.dtype = torch.float32,
    cache_dir: Path | None = None,
) -> GeneralModel:
    model = load_general(
        model_dir,
        describe(model_dir),
        dtype=dtype,
        device=torch.device("cpu"),
        page_tokens=PAGE_TOKENS,
        tp=TensorParallel(),
        library=library,
        cache_dir=cache_dir,
    )
    assert isinstance(model, CapturedModel if library else FlatModel)
    return model


def batch(model: GeneralModel, slices: dict[int, tuple[int, int]]) -> StepBatch:
    """Tokens start .. end of sequences by number."""
    num_groups = len(model.spec.kv.page_groups.windows)
    pieces = []
    for number, (start, end) in slices.items():
        used = -(-end // PAGE_TOKENS)
        runs = [
            torch.arange(first, first + used, dtype=torch.int32).numpy().tobytes()
            for first in range(number * PAGES_OF_SEQUENCE * num_groups, 1000, PAGES_OF_SEQUENCE)
        ][:num_groups]
        tokens = tuple((7 * at + 13 * number) % 200 for at in range(start, end))
        pieces.append(SequenceSlice(start, tokens, runs[0], True, tuple(runs[1:])))
    return StepBatch.build(pieces, PAGE_TOKENS)


def pool(model: GeneralModel) -> Tensor:
    num_pages = 3 * PAGES_OF_SEQUENCE * len(model.spec.kv.page_groups.windows)
    return torch.zeros(kv_shape(model.spec, model.tp, num_pages, PAGE_TOKENS), dtype=model.dtype)


STEPS = ({0: (0, 30), 1: (0, 7)}, {0: (30, 45), 1: (7, 8), 2: (0, 9)}, {0: (45, 46), 1: (8, 9), 2: (9, 10)})


@pytest.mark.parametrize(
    "kind", ["llama", "phi", "phi3", "gpt2", "gpt_neox", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_moe"]
)
def test_a_graph_computes_what_the_modules_do(kind: str, library: ctypes.CDLL, tmp_path: Path) -> None:
    model_dir = build_general_model(kind, tmp_path)
    modules, graph = load(model_dir, None), load(model_dir, library)
    assert isinstance(graph, GreedyModel)
    pools = pool(modules), pool(graph)
    for step in STEPS:
        expected, found = modules.scores(batch(modules, step), pools[0]), graph.scores(batch(graph, step), pools[1])
        assert expected is not None
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
        best = graph.greedy(batch(graph, step), pools[1])
        assert best is not None
        assert best.token_ids.tolist() == expected.argmax(-1).tolist()
        assert best.is_sound.all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    kind: str, dtype: torch.dtype, library: ctypes.CDLL, tmp_path: Path
) -> None:
    model = load(build_general_model(kind, tmp_path), library, dtype)
    together, alone = pool(model), pool(model)
    for step in STEPS:
        rows = model.scores(batch(model, step), together)
        assert rows is not None
        for row, (number, piece) in zip(rows.clone(), step.items(), strict=True):
            own = model.scores(batch(model, {number: piece}), alone)
            assert own is not None
            assert torch.equal(row, own[0])


def test_a_step_that_looks_at_numbers_is_not_captured() -> None:
    def decides(token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        del positions
        return token_ids[rows] * (2.0 if int(token_ids[0]) == 0 else 3.0)

    def counts(token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        return token_ids[rows] * len(torch.nonzero(positions < 2))

    for run in (decides, counts):
        with pytest.raises(NotCapturedError, match="depends on numbers"):
            capture(run)


def test_a_step_that_depends_on_its_size_is_not_captured() -> None:
    def run(token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        del positions
        return token_ids[rows] * (2.0 if len(token_ids) < 12 else 3.0)

    with pytest.raises(NotCapturedError, match="in steps of"):
        capture(run)


def test_what_a_gate_is_made_of_is_not_computed_beside_it(
    library: ctypes.CDLL, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        load(build_general_model("llama", tmp_path), library)
    assert "products=13, gates=3, activations=0, norms=7, rotations=6" in caplog.text  # four a layer, and the last
