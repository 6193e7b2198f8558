"""Forms in which checkpoints hold experts: the same model, whichever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.kernels.quantization.mxfp4 import VALUES
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.native_model import NativeModel
from tests.support.workers.any_model import KINDS, load
from tests.support.workers.paged_run import PagedRun

IDS = [3 * i % 250 for i in range(20)]


def scores(kind: str, model_dir: Path) -> Tensor:
    found = PagedRun(load(kind, model_dir)).step({"a": IDS})
    assert found is not None
    return found.clone()


def copied(model_dir: Path, to: Path, tensors: dict[str, Tensor], **config: object) -> Path:
    """The model with other tensors and other keys of config.json."""
    to.mkdir()
    content = json.loads((model_dir / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps(content))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, to / "model.safetensors")
    return to


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the experts of each layer in two stacks, as transformers 5 holds them in memory."""
    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(3):
        experts = f"model.layers.{layer}.mlp.experts"

        def stack(half: str, experts: str = experts) -> Tensor:
            return torch.stack([tensors[f"{experts}.{i}.{half}_proj.weight"] for i in range(6)])

        kept[f"{experts}.gate_up_proj"] = torch.cat([stack("gate"), stack("up")], dim=1)
        kept[f"{experts}.down_proj"] = stack("down")
    return kept


@pytest.mark.parametrize("kind", KINDS)
def test_experts_in_stacks_are_those_in_tensors_of_their_own(
    kind: str, tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    apart = tiny_model_dir("qwen3_moe")
    tensors = load_file(apart / "model.safetensors")
    assert "model.layers.0.mlp.experts.5.up_proj.weight" in tensors
    together = copied(apart, tmp_path / "stacked", stacked(tensors))
    assert torch.equal(scores(kind, together), scores(kind, apart))


def in_blocks(stack: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random MXFP4 codes in the shape of `stack` [experts, in, out]: blocks, scales, and the stack that they stand
    for."""
    experts, inputs, outputs = stack.shape
    codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=rng, dtype=torch.uint8)
    scales = torch.randint(121, 124, (experts, outputs, inputs // 32), generator=rng, dtype=torch.uint8)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    values = torch.tensor([*VALUES, *(-value for value in VALUES)])[codes.long()]
    widened = (values * 2.0 ** (scales[..., None].float() - 127)).flatten(2)
    return blocks, scales, widened.transpose(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_mxfp4_blocks_are_the_numbers_that_they_stand_for(
    kind: str, tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    plain_dir, rng = tiny_model_dir("gpt_oss"), torch.Generator().manual_seed(1)
    plain = load_file(plain_dir / "model.safetensors")
    coded: dict[str, Tensor] = {}
    for name, tensor in list(plain.items()):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            coded[f"{name}_blocks"], coded[f"{name}_scales"], plain[name] = in_blocks(tensor, rng)
        else:
            coded[name] = tensor
    widened = copied(plain_dir, tmp_path / "plain", plain)
    blocks = copied(plain_dir, tmp_path / "blocks", coded, quantization_config={"quant_method": "mxfp4"})
    assert torch.equal(scores(kind, blocks), scores(kind, widened))


@pytest.mark.skipif(native_library() is None, reason="no native kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_native_row_is_the_same_bits_whatever_is_beside_it_and_choices_are_counted(
    tiny_model_dir: Callable[[str], Path], dtype: torch.dtype
) -> None:
    model = load("native", tiny_model_dir("gpt_oss"), dtype)
    assert isinstance(model, NativeModel)
    assert model.expert_rows is not None
    alone = PagedRun(model).step({"a": IDS})
    assert alone is not None
    alone = alone.clone()
    assert model.expert_rows.sum(axis=1).tolist() == [2 * len(IDS)] * 3
    run = PagedRun(model)
    run.step({"b": IDS[5:], "a": IDS[:3]})
    beside = run.step({"a": IDS[3:], "b": IDS[:1], "c": IDS[2:]})
    assert beside is not None
    assert torch.equal(beside[: len(IDS) - 3], alone[3:])


def test_a_stack_of_another_size_is_refused_by_name(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    plain_dir = tiny_model_dir("gpt_oss")
    tensors = load_file(plain_dir / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    tensors[name] = tensors[name][:5]
    with pytest.raises(ModelError, match=f"tensor {name} has shape"):
        load("torch", copied(plain_dir, tmp_path / "short", tensors))
