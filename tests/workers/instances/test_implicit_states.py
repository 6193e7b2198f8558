"""Implicit state of sequences in a served repository: what one request leaves, the next one gets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import torch

from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import SequenceFlags
from tests.support.router.array_answers import infer_arrays
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab
from tests.support.workers.onnx_models import write_onnx

SUM = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
sequence_batching { max_sequence_idle_microseconds: 60000000 %s
  state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 2 ] %s } }
"""
ZERO = 'initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }'
FROM_FILE = 'initial_state { name: "ten" data_type: TYPE_FP32 dims: [ 2 ] data_file: "ten" }'


def write_sum(folder: Path, config: str, size: int = 2) -> None:
    """OUT is the sum of all IN of the sequence; so is the state."""
    inputs = [("IN", "FP32", ["n", size]), ("STATE_IN", "FP32", ["n", size])]
    outputs = [("OUT", "FP32", ["n", size]), ("STATE_OUT", "FP32", ["n", size])]
    nodes = [("Add", ["IN", "STATE_IN"], ["OUT"]), ("Add", ["IN", "STATE_IN"], ["STATE_OUT"])]
    write_onnx(folder / "1" / "model.onnx", nodes, inputs, outputs)
    (folder / "config.pbtxt").write_text(f'backend: "onnxruntime" instance_group {{ count: 1 }} {config}')


async def step(
    lab: RepositoryLab, model: str, sequence: int, value: float, *, start: bool = False, end: bool = False
) -> list[float]:
    inputs = {"IN": np.full((1, 2), value, np.float32)}
    outputs = await infer_arrays(lab, model, inputs, sequence=SequenceFlags(sequence, start, end))
    assert list(outputs) == ["OUT"]  # the state is not for clients
    values: list[float] = outputs["OUT"][0].tolist()
    return values


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
def test_each_sequence_has_its_own_state_from_its_start_on(tmp_path: Path, strategy: str) -> None:
    write_sum(tmp_path / "models" / "sum", SUM % (strategy, ZERO))

    @in_loop
    async def run() -> None:
        async with repository_lab(tmp_path, {}) as lab:

            async def one(number: int) -> list[list[float]]:
                values = [await step(lab, "sum", number, number, start=True)]
                values += [await step(lab, "sum", number, number) for _ in range(3)]
                return [*values, await step(lab, "sum", number, number, end=True)]

            sums = await asyncio.gather(*(one(number) for number in range(1, 5)))
            for number, values in enumerate(sums, 1):
                assert values == [[number * steps] * 2 for steps in range(1, 6)]
            assert await step(lab, "sum", 1, 7, start=True) == [7, 7]  # nothing is left of the one before
            assert await step(lab, "sum", 1, 1, start=True) == [1, 1]  # a second start begins anew

    run()


@in_loop
async def test_the_first_state_comes_from_a_file(tmp_path: Path) -> None:
    write_sum(tmp_path / "models" / "sum", SUM % ("", FROM_FILE))
    (tmp_path / "models" / "sum" / "initial_state").mkdir()
    (tmp_path / "models" / "sum" / "initial_state" / "ten").write_bytes(np.array([10, 20], np.float32).tobytes())
    async with repository_lab(tmp_path, {}) as lab:
        assert await step(lab, "sum", 1, 1, start=True) == [11, 21]
        assert await step(lab, "sum", 1, 1) == [12, 22]


@in_loop
async def test_a_large_state_goes_through_shared_memory_and_leaves_nothing_there(tmp_path: Path) -> None:
    size = 1 << 18
    write_sum(tmp_path / "models" / "sum", (SUM % ("", ZERO)).replace("dims: [ 2 ]", f"dims: [ {size} ]"), size)
    async with repository_lab(tmp_path, {}) as lab:  # which looks whether all memory came back
        row = np.arange(size, dtype=np.float32).reshape(1, -1)
        for steps in range(1, 4):
            flags = SequenceFlags(1, steps == 1, steps == 3)
            outputs = await infer_arrays(lab, "sum", {"IN": row}, sequence=flags)
            np.testing.assert_array_equal(outputs["OUT"], steps * row)


@in_loop
async def test_a_state_that_is_an_output_as_well_is_shown_to_those_who_ask(tmp_path: Path) -> None:
    write_sum(
        tmp_path / "models" / "sum",
        SUM % ("", ZERO) + 'output { name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 2 ] }',
    )
    async with repository_lab(tmp_path, {}) as lab:
        inputs = {"IN": np.ones((1, 2), np.float32)}
        flags = SequenceFlags(5, True, False)
        assert sorted(await infer_arrays(lab, "sum", inputs, sequence=flags)) == ["OUT", "STATE_OUT"]
        one = await infer_arrays(lab, "sum", inputs, ["OUT"], SequenceFlags(5))
        assert (sorted(one), one["OUT"].tolist()) == (["OUT"], [[2, 2]])
        other = await infer_arrays(lab, "sum", inputs, ["STATE_OUT"], SequenceFlags(5))
        assert (sorted(other), other["STATE_OUT"].tolist()) == (["STATE_OUT"], [[3, 3]])


@in_loop
async def test_a_state_may_grow_and_sequences_of_different_lengths_do_not_mix(tmp_path: Path) -> None:
    """The state is all that came so far; OUT is its sum."""
    folder = tmp_path / "models" / "grow"
    inputs = [("IN", "FP32", ["n", 1]), ("PAST", "FP32", ["n", "m"])]
    outputs = [("NEXT", "FP32", ["n", "k"]), ("OUT", "FP32", ["n", 1])]
    import onnx

    concat = onnx.helper.make_node("Concat", ["PAST", "IN"], ["NEXT"], axis=1)
    total = onnx.helper.make_node("ReduceSum", ["NEXT", "AXES"], ["OUT"], keepdims=1)
    described = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, _, shape in tensors]
        for tensors in (inputs, outputs)
    ]
    axes = onnx.helper.make_tensor("AXES", onnx.TensorProto.INT64, [1], [1])
    graph = onnx.helper.make_graph([concat, total], "grow", *described, initializer=[axes])
    (folder / "1").mkdir(parents=True)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "1" / "model.onnx"))
    (folder / "config.pbtxt").write_text(
        'backend: "onnxruntime" instance_group { count: 1 } max_batch_size: 4 '
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } '
        "sequence_batching { oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 20000 } "
        'state { input_name: "PAST" output_name: "NEXT" data_type: TYPE_FP32 dims: [ -1 ] } }'
    )

    async with repository_lab(tmp_path, {}) as lab:

        async def ask(sequence: int, *, start: bool = False) -> float:
            one = {"IN": np.ones((1, 1), np.float32)}
            outputs = await infer_arrays(lab, "grow", one, sequence=SequenceFlags(sequence, start))
            return float(outputs["OUT"][0, 0])

        assert await ask(1, start=True) == 1
        assert await ask(1) == 2
        assert await ask(2, start=True) == 1
        for steps in range(3, 6):  # one sequence is longer by one than the other
            assert await asyncio.gather(ask(1), ask(2)) == [steps, steps - 1]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@in_loop
async def test_a_failed_request_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "sum"
    (folder / "1").mkdir(parents=True)

    class Sum(torch.nn.Module):
        def forward(self, given: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert bool((given >= 0).all()), "negative"
            return given + state, given + state

    torch.jit.script(Sum()).save(str(folder / "1" / "model.pt"))  # type: ignore[no-untyped-call]
    config = SUM % ("", ZERO)
    for ours, theirs in (("STATE_IN", "IN__1"), ("STATE_OUT", "OUT__1"), ('"IN"', '"IN__0"'), ('"OUT"', '"OUT__0"')):
        config = config.replace(ours, theirs)
    (folder / "config.pbtxt").write_text(f'backend: "pytorch" {config}')
    async with repository_lab(tmp_path, {}) as lab:

        async def add(value: float, *, start: bool = False) -> float:
            inputs = {"IN__0": np.full((1, 2), value, np.float32)}
            outputs = await infer_arrays(lab, "sum", inputs, sequence=SequenceFlags(3, start))
            return float(outputs["OUT__0"][0, 0])

        assert await add(1, start=True) == 1
        with pytest.raises(InferError, match="negative"):
            await add(-5)
        assert await add(2) == 3
