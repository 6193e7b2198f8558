"""The native model: what holds beyond parity, on both builds where the processor runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.kernels.cpu.native_library import NEEDED_FLAGS, fits, open_library
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.model_loader import load_model
from slipstream.workers.models.native_model import NativeModel, is_native, load_native
from tests.support.workers.paged_run import PagedRun
from tests.support.workers.tiny_models import VOCAB_SIZE, build_tiny_model

PAGE_TOKENS = 8
DTYPES = (torch.float32, torch.bfloat16)


def tokens(seed: int, count: int) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(params=NEEDED_FLAGS)
def load(request: pytest.FixtureRequest) -> Callable[..., NativeModel]:
    if not fits(request.param):
        pytest.skip(f"this processor has no {request.param}")
    try:
        library = open_library(request.param)
    except OSError as error:
        pytest.skip(str(error))
    library.slipstream_set_num_threads(2)
    return lambda model_dir, dtype: load_native(model_dir, library, dtype=dtype, page_tokens=PAGE_TOKENS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3"])
def test_a_token_gives_the_same_bits_alone_in_a_batch_and_in_a_chunk(
    family: str, dtype: torch.dtype, load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load(tiny_model_dir(family), dtype)
    ids = tokens(1, 70)
    one_chunk = PagedRun(model).step({"a": ids})
    assert one_chunk is not None
    alone = PagedRun(model)
    parts = [alone.step({"a": ids[:33]}), *(alone.step({"a": [token]}) for token in ids[33:])]
    crowd = PagedRun(model)
    crowd.step({"b": tokens(2, 40), "c": tokens(3, 5)})
    crowded = [crowd.step({"b": [1], "a": ids[:33], "c": [2, 3]})]
    crowded += [crowd.step({"c": [4], "a": [token], "b": [5]}) for token in ids[33:]]
    assert torch.equal(torch.cat([part for part in parts if part is not None]), one_chunk)
    own = [
        crowded[0][1:34] if crowded[0] is not None else None,
        *(part[1:2] for part in crowded[1:] if part is not None),
    ]
    assert torch.equal(torch.cat([part for part in own if part is not None]), one_chunk)


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_tokens_are_the_best_of_the_logits(
    dtype: torch.dtype, load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load(tiny_model_dir("llama"), dtype)
    kv = torch.zeros(kv_shape(model.config, model.tp, 32, PAGE_TOKENS), dtype=dtype)
    slices = [
        SequenceSlice(0, tuple(tokens(i, 20)), np.arange(3 * i, 3 * i + 3, dtype=np.int32).tobytes(), i != 1)
        for i in range(4)
    ]
    batch = StepBatch.build(slices, PAGE_TOKENS)
    logits = model.logits(model.forward(batch, kv)[batch.sample_indices])
    assert logits is not None
    expected = logits.argmax(-1).tolist()
    layers: list[int] = []
    greedy = model.greedy(batch, kv, layers.append)
    assert greedy is not None
    assert greedy.token_ids.tolist() == expected
    assert greedy.is_sound.all()
    assert layers == list(range(model.config.num_layers))
    kv[:, 0] = float("nan")  # positions before the first sequence's next token
    token = SequenceSlice(20, (1,), slices[0].page_ids, True)
    other = SequenceSlice(20, (1,), slices[2].page_ids, True)
    after = model.greedy(StepBatch.build([token, other], PAGE_TOKENS), kv)
    assert after is not None
    assert after.is_sound.tolist() == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3"])
def test_scores_of_sampled_rows_are_those_of_the_whole_step(
    family: str, dtype: torch.dtype, load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load(tiny_model_dir(family), dtype)
    num_groups = len(model.config.kv.page_groups.windows)

    def part(sequence: int, start: int, count: int, samples: bool) -> SequenceSlice:
        pages = np.arange(10 * sequence, 10 * sequence + -(-(start + count) // PAGE_TOKENS), dtype=np.int32)
        more = tuple((pages + 40 * group).tobytes() for group in range(1, num_groups))
        return SequenceSlice(start, tuple(tokens(start + sequence, count)), pages.tobytes(), samples, more)

    first = [part(sequence, 0, 30, sequence == 2) for sequence in range(4)]
    # One that decodes, chunks that end a prompt and one that does not.
    second = [part(2, 30, 1, True), part(0, 30, 40, True), part(1, 30, 20, False), part(3, 30, 7, True)]
    found: list[list[torch.Tensor]] = []
    for in_one_go in (True, False):
        kv = torch.zeros(kv_shape(model.config, model.tp, 40 * num_groups, PAGE_TOKENS), dtype=dtype)
        results = []
        for slices in (first, second):
            batch = StepBatch.build(slices, PAGE_TOKENS)
            if in_one_go:
                scores = model.scores(batch, kv)
            else:
                scores = model.logits(model.forward(batch, kv)[batch.sample_indices])
            assert scores is not None
            results.append(scores.clone())
        found.append([*results, kv])
    for ours, expected in zip(*found, strict=True):
        assert torch.equal(ours, expected)


def test_a_step_that_samples_nothing_has_keys_and_values_and_no_scores(
    load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load(tiny_model_dir("llama"), torch.float32)
    chunk = SequenceSlice(0, tuple(tokens(1, 20)), np.arange(3, dtype=np.int32).tobytes(), False)
    batch = StepBatch.build([chunk], PAGE_TOKENS)
    pools = [torch.zeros(kv_shape(model.config, model.tp, 4, PAGE_TOKENS)) for _ in range(2)]
    layers: list[int] = []
    assert model.scores(batch, pools[0], layers.append) is None
    model.forward(batch, pools[1])
    assert torch.equal(*pools)
    assert pools[0].any()
    assert layers == list(range(model.config.num_layers))


def test_sizes_that_fill_no_vector_compute_the_same(load: Callable[..., NativeModel], tmp_path: Path) -> None:
    sizes = {"hidden_size": 72, "intermediate_size": 95, "num_attention_heads": 3, "num_key_value_heads": 3}
    model_dir = build_tiny_model("llama_biased", tmp_path, head_dim=24, **sizes)
    ids = tokens(4, 50)
    exact = PagedRun(load_model(model_dir, dtype=torch.float32)).step({"a": ids})
    native, rounded = (PagedRun(load(model_dir, dtype)).step({"a": ids}) for dtype in DTYPES)
    assert exact is not None
    assert native is not None
    assert rounded is not None
    torch.testing.assert_close(native, exact, atol=2e-4, rtol=2e-4)
    assert (rounded - exact).abs().mean() < 0.1 * exact.std()


def test_pages_of_another_kind_are_refused(
    load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load(tiny_model_dir("llama"), torch.float32)
    batch = StepBatch.build([SequenceSlice(0, (1, 2), np.zeros(1, np.int32).tobytes(), True)], PAGE_TOKENS)
    shape = kv_shape(model.config, model.tp, 4, PAGE_TOKENS)
    for kv in (torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(kv_shape(model.config, model.tp, 4, 16))):
        with pytest.raises(ValueError, match=r"kv: must be contiguous pages of 8 tokens in torch\.float32"):
            model.forward(batch, kv)


def test_times_are_kept_by_op_where_asked_for(
    load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    run = PagedRun(model := load(tiny_model_dir("llama"), torch.float32))
    run.step({"a": [1, 2, 3]})
    assert not any(model.op_times().values())
    model.time_ops(True)
    run.step({"a": [4]})
    times = model.op_times()
    products = {"q_proj", "o_proj", "gate_proj", "down_proj", "lm_head"}
    norms = {"input_layernorm", "post_attention_layernorm", "norm"}
    computed = {"embed_tokens", "rotary", "write", "attend"} | products | norms
    assert {op for op, seconds in times.items() if seconds > 0} == computed


def test_half_precision_of_another_kind_is_left_to_torch(tiny_model_dir: Callable[[str], Path]) -> None:
    config = ModelConfig.read(tiny_model_dir("llama"))
    assert [is_native(config, dtype) for dtype in (*DTYPES, torch.float16)] == [True, True, False]
    assert not is_native(dataclasses.replace(config, head_dim=20), torch.float32)


def test_a_step_without_the_pages_of_all_groups_is_refused(
    load: Callable[..., NativeModel], tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load(tiny_model_dir("gemma3"), torch.float32)
    kv = torch.zeros(kv_shape(model.config, model.tp, 8, PAGE_TOKENS))
    batch = StepBatch.build([SequenceSlice(0, (1, 2), np.zeros(1, np.int32).tobytes(), True)], PAGE_TOKENS)
    with pytest.raises(ValueError, match="pages of 1 groups, the model has"):
        model.forward(batch, kv)
