"""What is chosen for a model on a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.cluster.sizing.chosen_config import table
from slipstream.cluster.sizing.machine_facts import MIB, MachineFacts
from slipstream.cluster.sizing.model_size import ModelFacts
from slipstream.cluster.sizing.pool_choice import (
    CLUSTER_BYTES,
    GPU_RESERVE_BYTES,
    GPU_SHARE,
    LEAST_CONTEXT,
    WORKER_BYTES,
    CannotServe,
    PoolChoice,
    SizingChoice,
    choose,
)
from slipstream.cluster.sizing.serve_target import DEMO_MODEL
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.pool_size import page_demand, stated_num_pages
from slipstream.workers.models.description.model_description import ModelDescription
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.sharding.rank_share import Rank

GIB = 1024 * MIB
DEMO = ModelFacts(8 * MIB, 8 * MIB, 5 * MIB, 2560, 4096, "bfloat16", "", (8, 4, 416))
LLAMA_8B = ModelFacts(15 * GIB, 15 * GIB, 5 * GIB, 131072, 131072, "bfloat16", "", (32, 8, 14336))
LLAMA_70B = ModelFacts(132 * GIB, 132 * GIB, 40 * GIB, 327680, 131072, "bfloat16", "", (64, 8, 28672))


def host(num_cores: int, gib: float) -> MachineFacts:
    return MachineFacts(num_cores, int(gib * GIB))


def gpus(count: int, gib: float) -> MachineFacts:
    return MachineFacts(64, 500 * GIB, (int(gib * GIB),) * count)


def shape(choice: SizingChoice) -> tuple[int, int | None, int, int | None]:
    """Prefill groups and their threads, decode workers and theirs."""
    return choice.prefill.replicas, choice.prefill.num_threads, choice.decode.replicas, choice.decode.num_threads


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (host(1, 1.5), (0, None, 1, None)),  # a small laptop, or a container with one CPU: one worker does it all
        (host(1, 64), (0, None, 1, None)),
        (host(2, 1.35), (0, None, 1, None)),  # cores for two workers, memory for one
        (host(2, 8), (1, None, 1, None)),
        (host(8, 16), (1, None, 1, None)),
        (host(12, 16), (1, 6, 1, 6)),
        (host(16, 32), (1, 8, 1, 8)),
        (host(64, 256), (2, 16, 1, 32)),
        (host(192, 768), (10, 16, 1, 32)),
    ],
)
def test_the_demo_model_gets_workers_by_cores_and_memory(
    machine: MachineFacts, expected: tuple[int, int | None, int, int | None]
) -> None:
    choice = choose(machine, DEMO)
    assert shape(choice) == expected
    assert choice.device == "cpu"
    assert choice.max_model_len == 4096


def test_half_of_what_is_left_goes_to_pages_and_half_of_that_to_decode() -> None:
    choice = choose(host(16, 32), LLAMA_8B)
    left_mib = (32 * GIB - CLUSTER_BYTES - 2 * WORKER_BYTES - LLAMA_8B.weight_bytes) // MIB
    assert choice.decode.kv_cache_mib == choice.prefill.kv_cache_mib
    assert left_mib / 4 - 16 < choice.decode.kv_cache_mib <= left_mib / 4
    assert choice.max_model_len == choice.decode.kv_cache_mib * MIB // LLAMA_8B.kv_token_bytes // 16 * 16
    assert any("of the model's 131072" in note for note in choice.notes)


def test_a_small_model_does_not_get_pages_that_it_could_not_fill() -> None:
    choice = choose(host(8, 512), DEMO)
    assert choice.decode.kv_cache_mib * MIB == 64 * 2048 * DEMO.kv_token_bytes


def test_a_prefill_worker_is_given_up_for_a_longer_context() -> None:
    machine = host(8, 18)
    choice = choose(machine, LLAMA_8B)
    assert choice.prefill == PoolChoice(0)
    assert choice.max_model_len > LEAST_CONTEXT
    assert "0 prefill workers, not 1: memory does not suffice for more" in choice.notes


def test_a_model_that_is_too_large_is_refused_with_figures_and_what_would_help() -> None:
    with pytest.raises(CannotServe) as refused:
        choose(host(8, 12), LLAMA_8B)
    assert str(refused.value).startswith(
        "it does not fit into memory: of 12.0 GiB that are free, its weights take 15.0"
    )
    assert "engine.quantization: int4" in str(refused.value)
    with pytest.raises(CannotServe) as refused:
        choose(host(8, 4), LLAMA_8B)
    assert "int4" not in str(refused.value)  # that would not fit either


def test_without_native_kernels_each_worker_holds_the_weights_itself() -> None:
    model = replace(LLAMA_8B, weight_bytes=5 * GIB, int4_bytes=5 * GIB)  # stored in four bits, which PyTorch widens
    assert choose(host(8, 24), model).prefill.replicas == 1
    with pytest.raises(CannotServe, match=r"weights take 15\.0 GiB"):
        choose(replace(host(8, 14), has_kernels=False), model)
    alone = choose(replace(host(8, 24), has_kernels=False), model)
    assert alone.prefill.replicas == 0


def test_a_type_without_native_kernels_is_named() -> None:
    config = replace(ModelConfig.read(DEMO_MODEL), dtype="float16")
    (note,) = choose(host(8, 32), ModelFacts.of(config)).notes
    assert "no form for float16; with engine.dtype: bfloat16" in note
    (note,) = choose(host(8, 32), ModelFacts.of(replace(config, dtype="float32", head_dim=20))).notes
    assert note.endswith("no form for attention heads of 20 numbers")


def test_a_state_of_a_sequence_takes_room_beside_its_tokens() -> None:
    """A hybrid model whose state is as large as 1,000 tokens: room for so many fewer, and useful memory for more."""
    hybrid = replace(DEMO, state_bytes=1000 * DEMO.kv_token_bytes)
    pool_bytes = 2000 * DEMO.kv_token_bytes
    assert (DEMO.most_tokens(pool_bytes, 16), hybrid.most_tokens(pool_bytes, 16)) == (2000, 992)
    assert hybrid.most_tokens(DEMO.kv_token_bytes, 16) == 0
    assert choose(host(8, 32), hybrid).decode.kv_cache_mib > choose(host(8, 32), DEMO).decode.kv_cache_mib


@pytest.mark.parametrize("state_bytes", [0, 245_760, 196_608, 196_609, 200 * MIB])
def test_the_context_of_a_pool_is_what_a_worker_finds_it_to_be(state_bytes: int) -> None:
    spec = GeneralSpec(
        "Hybrid", 8, 1 << 20, "bfloat16", replace(KvSpec.uniform(4, 128, (None,) * 6), state_bytes=state_bytes)
    )
    model, config = ModelFacts.of_general(ModelDescription(spec, num_parameters=1000)), EngineConfig(kv_cache_mib=112)
    num_pages = stated_num_pages(spec, config, Rank())
    assert num_pages is not None
    found = page_demand(spec, config).most_tokens(num_pages, model.max_positions)
    assert model.most_tokens(112 * MIB, config.page_tokens) == found


def test_with_much_memory_a_hybrid_model_has_all_of_its_context() -> None:
    hybrid = replace(DEMO, max_positions=1 << 18, state_bytes=41_000)
    choice = choose(host(8, 64), hybrid)
    assert choice.max_model_len == 1 << 18
    assert choice.notes == ()


@pytest.mark.parametrize("machine", [host(8, 32), gpus(2, 79)])
def test_a_model_with_a_state_alone_gets_the_context_that_it_has(machine: MachineFacts) -> None:
    mamba = replace(DEMO, kv_token_bytes=0, state_bytes=100_000)
    choice = choose(machine, mamba)
    assert choice.max_model_len == mamba.max_positions
    assert any("sequences" in line for line in table(choice, machine, mamba) if "decode" in line)


@pytest.mark.parametrize(
    ("machine", "model", "tp", "prefill", "decode"),
    [
        (gpus(1, 79), LLAMA_8B, 1, 0, 1),
        (gpus(2, 79), LLAMA_8B, 1, 1, 1),
        (gpus(8, 79), LLAMA_8B, 1, 2, 6),
        (gpus(8, 79), LLAMA_70B, 4, 1, 1),
        (gpus(4, 79), LLAMA_70B, 4, 0, 1),
        (gpus(2, 79), LLAMA_70B, 2, 0, 1),  # hardly any room for pages, and no way to more
        (gpus(8, 141), LLAMA_70B, 2, 1, 3),
        (gpus(3, 40), DEMO, 1, 1, 2),
    ],
)
def test_gpus_are_grouped_as_the_model_needs(
    machine: MachineFacts, model: ModelFacts, tp: int, prefill: int, decode: int
) -> None:
    if (machine, model) == (gpus(2, 79), LLAMA_70B):
        model = replace(model, weight_bytes=128 * GIB)
    choice = choose(machine, model)
    assert (choice.device, choice.tp, choice.prefill.replicas, choice.decode.replicas) == ("cuda", tp, prefill, decode)


def test_idle_gpus_are_mentioned() -> None:
    choice = choose(gpus(6, 79), LLAMA_70B)
    assert choice.tp == 4
    assert any("2 of 6 GPUs stay idle" in note for note in choice.notes)


def test_a_model_that_is_too_large_for_the_gpus_is_refused_with_figures() -> None:
    with pytest.raises(
        CannotServe, match=r"^it does not fit on the GPUs: 1 with 24\.0 GiB free.*132\.0 GiB of weights"
    ):
        choose(gpus(1, 24), LLAMA_70B)


def test_the_fullest_gpu_counts() -> None:
    machine = replace(gpus(2, 79), gpu_bytes=(79 * GIB, 20 * GIB))
    choice = choose(machine, LLAMA_8B)
    assert choice.decode.kv_cache_mib * MIB * choice.tp <= GPU_SHARE * 20 * GIB * choice.tp - LLAMA_8B.weight_bytes


def test_gpus_without_ucx_are_refused_with_what_to_install() -> None:
    with pytest.raises(CannotServe, match=r"pip install 'slipstream\[cpu\]'"):
        choose(replace(gpus(1, 79), has_ucx=False), LLAMA_8B)


def test_hosts_without_ucx_serve() -> None:
    assert choose(replace(host(2, 8), has_ucx=False), DEMO) == choose(host(2, 8), DEMO)


def test_gpus_that_pytorch_cannot_use_are_mentioned() -> None:
    choice = choose(replace(host(8, 16), num_unused_gpus=1), DEMO)
    assert choice.device == "cpu"
    assert choice.notes == ("1 NVIDIA GPU not used: this PyTorch is built for the CPU",)


@given(
    num_cores=st.integers(1, 256),
    memory_mib=st.integers(0, 2 << 20),
    gpu_mib=st.lists(st.integers(0, 200 << 10), max_size=9),
    has_kernels=st.booleans(),
    model=st.sampled_from([DEMO, LLAMA_8B, LLAMA_70B]),
)
def test_what_is_chosen_fits(
    num_cores: int, memory_mib: int, gpu_mib: list[int], has_kernels: bool, model: ModelFacts
) -> None:
    machine = MachineFacts(num_cores, memory_mib * MIB, tuple(mib * MIB for mib in gpu_mib), 0, has_kernels)
    try:
        choice = choose(machine, model)
    except CannotServe:
        return
    pools = [pool for pool in (choice.prefill, choice.decode) if pool.replicas]
    assert choice.decode.replicas
    assert min(LEAST_CONTEXT, model.max_positions) <= choice.max_model_len <= model.max_positions
    for pool in pools:
        assert choice.max_model_len * model.kv_token_bytes <= pool.kv_cache_mib * MIB * choice.tp
    if choice.device == "cuda":
        assert sum(pool.replicas for pool in pools) * choice.tp <= len(gpu_mib)
        assert not any(count % choice.tp for count in model.shared_out)
        for pool in pools:
            taken = pool.kv_cache_mib * MIB + model.weight_bytes // choice.tp + GPU_RESERVE_BYTES
            assert taken <= min(machine.gpu_bytes)
        return
    assert sum(pool.replicas * (pool.num_threads or 0) for pool in pools) <= num_cores
    num_workers = sum(pool.replicas for pool in pools)
    weights = model.weight_bytes * (1 if has_kernels else num_workers)
    pages = sum(pool.replicas * pool.kv_cache_mib * MIB for pool in pools)
    assert CLUSTER_BYTES + num_workers * WORKER_BYTES + weights + pages <= machine.memory_bytes
