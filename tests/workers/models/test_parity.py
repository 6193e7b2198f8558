"""The Llama family against transformers, in torch and in native code: same directory, same tokens, same logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.workers.any_model import KINDS, load
from tests.support.workers.paged_run import PagedRun
from tests.support.workers.tiny_models import FAMILIES, VOCAB_SIZE

LENGTH = (
    150  # tokens of a sequence, beyond the window of 24 and, for llama, the 64 positions that rope scaling stretches
)
FLOAT32_TOLERANCE = 2e-4  # of logits with a standard deviation of about 1.7


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tokens(seed: int, count: int = LENGTH) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference_logits(model_dir: Path, *sequences: list[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    with torch.inference_mode():
        return [model(torch.tensor([ids])).logits[0].float() for ids in sequences]


def assert_same(got: Tensor | None, expected: Tensor) -> None:
    assert got is not None
    torch.testing.assert_close(got, expected, atol=FLOAT32_TOLERANCE, rtol=FLOAT32_TOLERANCE)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


@pytest.fixture(params=FAMILIES)
def model_dir(request: pytest.FixtureRequest, tiny_model_dir: Callable[[str], Path]) -> Path:
    return tiny_model_dir(request.param)


def test_whole_prompt_in_one_step(model_dir: Path, kind: str) -> None:
    run = PagedRun(load(kind, model_dir))
    ids = tokens(1)
    assert_same(run.step({"a": ids}), reference_logits(model_dir, ids)[0])


def test_chunks_and_single_tokens_of_several_sequences_in_mixed_steps(model_dir: Path, kind: str) -> None:
    run = PagedRun(load(kind, model_dir))
    texts = {"a": tokens(2), "b": tokens(3), "c": tokens(4, 60)}
    plan = [
        {"a": 50, "c": 3},
        {"c": 1, "a": 1, "b": 70},
        {"b": 1, "c": 20, "a": 1},
        {"a": 30, "b": 2, "c": 1},
        *[{"c": 1, "b": 1, "a": 1}] * 20,
    ]
    got: dict[str, list[Tensor]] = {name: [] for name in texts}
    for counts in plan:
        step = {name: texts[name][run.positions.get(name, 0) :][:count] for name, count in counts.items()}
        logits = run.step(step)
        assert logits is not None
        for name, part in zip(step, logits.split([len(ids) for ids in step.values()]), strict=True):
            got[name].append(part)
    for name, expected in zip(texts, reference_logits(model_dir, *texts.values()), strict=True):
        assert_same(torch.cat(got[name]), expected[: run.positions[name]])


def test_greedy_generation_is_identical(model_dir: Path, kind: str) -> None:
    prompt = tokens(5, 40)
    reference = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )[0].tolist()
    run, ids = PagedRun(load(kind, model_dir)), prompt
    for _ in range(40):
        logits = run.step({"a": ids[run.positions.get("a", 0) :]})
        assert logits is not None
        ids = [*ids, int(logits[-1].argmax())]
    assert ids == expected


@pytest.mark.parametrize(
    ("kind", "dtype"), [("torch", torch.bfloat16), ("torch", torch.float16), ("native", torch.bfloat16)]
)
def test_half_precision_is_as_close_to_float32_as_transformers_in_the_same_dtype(
    model_dir: Path, kind: str, dtype: torch.dtype
) -> None:
    """Two roundings of the same model: our mean error of a token may be at most 1.5 times theirs, and the native model,
    which rounds less often, has a smaller one. That of half of the tokens: where two experts score nearly alike, a
    rounding decides between them."""
    ids = tokens(6)
    exact = reference_logits(model_dir, ids)[0]
    theirs = (reference_logits(model_dir, ids, dtype=dtype)[0] - exact).abs().mean(-1).median()
    run = PagedRun(load(kind, model_dir, dtype))
    parts = [run.step({"a": ids[:100]})] + [run.step({"a": [i]}) for i in ids[100:]]
    ours = (torch.cat([part for part in parts if part is not None]) - exact).abs().mean(-1).median()
    assert 0 < ours < (1.5 if kind == "torch" else 1.0) * theirs


def test_a_layer_is_reported_once_its_keys_and_values_are_written(
    tiny_model_dir: Callable[[str], Path], kind: str
) -> None:
    run = PagedRun(load(kind, tiny_model_dir("llama")))
    complete: list[list[bool]] = []
    run.step(
        {"a": tokens(9, 8)},
        lambda _: complete.append(run.kv[:, run.pages["a"][0][0]].isfinite().flatten(1).all(1).tolist()),
    )
    assert complete == [[True, False, False], [True, True, False], [True, True, True]]


def test_what_an_earlier_owner_left_in_a_page_does_not_reach_the_next(
    tiny_model_dir: Callable[[str], Path], kind: str
) -> None:
    run = PagedRun(load(kind, tiny_model_dir("llama_tied")))
    ids = tokens(7, 40)
    first = run.step({"a": ids})
    run.kv[:, [page for page in range(run.kv.shape[1]) if page not in run.pages["a"][0]]] = float("inf")
    rest = [run.step({"a": [token]}) for token in tokens(8, 30)]
    assert first is not None
    assert all(logits is not None and logits.isfinite().all() for logits in rest)
