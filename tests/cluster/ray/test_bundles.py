"""What a cluster reserves from Ray."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.ray.bundles import CannotPlace, check_fits, check_one_host, pool_resources
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.workers.config.worker_config import EngineConfig

BASE = ClusterConfig(model=ServedModelConfig(path="/m"))


def config(prefill: PoolConfig, decode: PoolConfig) -> ClusterConfig:
    return dataclasses.replace(BASE, prefill=prefill, decode=decode)


def test_a_bundle_holds_all_ranks_of_a_group() -> None:
    prefill, decode = pool_resources(config(PoolConfig(replicas=2, tp=4), PoolConfig(replicas=3)), num_gpus=0)
    assert prefill.rank == {"CPU": 0.1}
    assert (prefill.bundle, prefill.replicas) == ({"CPU": 0.4}, 2)
    assert (decode.bundle, decode.replicas) == ({"CPU": 0.1}, 3)


def test_a_pool_reserves_its_resources_for_every_rank_and_stays_with_its_labels() -> None:
    pool = PoolConfig(replicas=2, tp=2, resources={"fast_disk": 1}, labels={"rack": "a"})
    prefill, decode = pool_resources(config(pool, PoolConfig()), num_gpus=0)
    assert prefill.rank == {"CPU": 0.1, "fast_disk": 1}
    assert prefill.bundle == {"CPU": 0.2, "fast_disk": 2}
    assert prefill.labels == {"rack": "a"}
    assert not decode.labels
    with pytest.raises(CannotPlace, match=r"the workers need 4 fast_disk \(prefill 4 \+ decode 0\) and Ray has 2"):
        check_fits((prefill, decode), {"CPU": 4, "fast_disk": 2})


def test_a_group_over_several_hosts_reserves_as_much_on_each() -> None:
    pool = PoolConfig(replicas=3, tp=4, hosts_per_group=2, hosts_share_label="rack", num_gpus=1)
    prefill, decode = pool_resources(config(pool, PoolConfig(num_gpus=1)), num_gpus=16)
    assert (prefill.bundle, prefill.of_group) == ({"CPU": 0.2, "GPU": 2}, {"CPU": 0.4, "GPU": 4})
    assert prefill.total["GPU"] == 12
    assert prefill.words == "0.2 CPU, 2 GPU on each of 2 hosts with the same rack"
    assert not prefill.fills_same_room_as(dataclasses.replace(prefill, num_hosts=1))
    check_one_host((decode,))
    with pytest.raises(CannotPlace, match="hosts_per_group is 2, and a Ray of its own has one host"):
        check_one_host((prefill, decode))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 4, "hosts_per_group": 3}, "hosts_per_group must divide tp, which is 4, got 3"),
        ({"hosts_share_label": "rack"}, "hosts_share_label must be a label of groups with several hosts_per_group"),
        ({"resources": {"GPU": 1}}, "resources must not name GPU; CPUs and GPUs are num_cpus and num_gpus"),
        ({"resources": {"disk": 0}}, "resources.disk must be positive and finite, got 0"),
        ({"labels": {"rack": ""}}, "labels must have names and values, got 'rack': ''"),
    ],
)
def test_reservations_that_ray_would_not_understand_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        PoolConfig(**fields)


def test_without_a_gpu_nothing_asks_for_one() -> None:
    assert all("GPU" not in pool.rank for pool in pool_resources(BASE, num_gpus=0))


@pytest.mark.parametrize(("num_gpus", "share"), [(1, 0.5), (2, 1.0), (8, 1.0)])
def test_workers_share_the_gpus_there_are(num_gpus: int, share: float) -> None:
    assert [pool.rank["GPU"] for pool in pool_resources(BASE, num_gpus)] == [share, share]


@pytest.mark.parametrize(("num_gpus", "replicas", "share"), [(2, 2, 0.5), (8, 8, 0.5), (2, 4, 0.33), (3, 2, 1.0)])
def test_every_share_fits_on_one_gpu_whole(num_gpus: int, replicas: int, share: float) -> None:
    pools = pool_resources(config(PoolConfig(), PoolConfig(replicas=replicas)), num_gpus)
    assert {pool.rank["GPU"] for pool in pools} == {share}
    assert num_gpus * int(1 / share) >= 1 + replicas


def test_three_workers_on_one_gpu_do_not_ask_for_more_than_it() -> None:
    pools = pool_resources(config(PoolConfig(), PoolConfig(replicas=2)), num_gpus=1)
    assert sum(pool.total["GPU"] for pool in pools) <= 1
    check_fits(pools, {"CPU": 4, "GPU": 1})


def test_with_nccl_each_rank_has_a_gpu() -> None:
    nccl = dataclasses.replace(BASE, kv_transfer=TransferConfig(transport="nccl"))
    assert [pool.rank["GPU"] for pool in pool_resources(nccl, num_gpus=2)] == [1.0, 1.0]
    with pytest.raises(CannotPlace, match=r"transport is nccl.* needs a GPU for each rank, and Ray has 1 GPU for 2"):
        pool_resources(nccl, num_gpus=1)


def test_a_cpu_engine_leaves_the_gpus_alone() -> None:
    cpu = PoolConfig(engine=EngineConfig(device="cpu"))
    assert all("GPU" not in pool.rank for pool in pool_resources(config(cpu, cpu), num_gpus=8))


def test_ranks_of_a_group_share_no_gpu() -> None:
    with pytest.raises(CannotPlace, match=r"prefill.tp is 2, whose ranks share no GPU, and Ray has 2 GPU for 3 ranks"):
        pool_resources(config(PoolConfig(tp=2), PoolConfig()), num_gpus=2)


def test_cuda_without_a_gpu_is_one_sentence() -> None:
    cuda = PoolConfig(engine=EngineConfig(device="cuda"))
    with pytest.raises(CannotPlace, match=r"decode.engine.device is cuda and Ray has no GPU"):
        pool_resources(config(PoolConfig(), cuda), num_gpus=0)


def test_a_cluster_that_is_too_small_is_named_with_both_sizes() -> None:
    pools = pool_resources(config(PoolConfig(replicas=2, num_gpus=1), PoolConfig(num_gpus=4)), num_gpus=4)
    with pytest.raises(CannotPlace, match=r"the workers need 6 GPU \(prefill 2 \+ decode 4\) and Ray has 4"):
        check_fits(pools, {"CPU": 8, "GPU": 4})


def test_a_pool_that_wants_nothing_still_has_bundles() -> None:
    nothing = PoolConfig(num_cpus=0, engine=EngineConfig(device="cpu"))
    assert all(pool.bundle == {"CPU": 0.001} for pool in pool_resources(config(nothing, nothing), num_gpus=0))
