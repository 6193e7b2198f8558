"""Names, limits and refusals of a fleet, without Ray: nothing is started here."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ModelEntry, ServedModelConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.fleet.model_fleet import Moved
from slipstream.cluster.ray.ray_session import RaySession
from slipstream.cluster.repository.files_metrics import FilesPage
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.supervisor.cluster_fleet import ClusterFleet
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.one_model_fleet import OneModelFleet, cannot_switch
from slipstream.cluster.supervisor.supervisor import Supervisor
from slipstream.router.model_files.file_digest import DigestCache
from slipstream.router.model_files.manifest import Manifest
from slipstream.workers.config.worker_config import EngineConfig
from tests.support.cluster.fake_members import FakeRouter, Watcher, serving

CONFIG = ClusterConfig(ServedModelConfig("/m"))
DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"


def in_fleet(check: Any, config: ClusterConfig = CONFIG) -> None:
    """Runs `check(fleet)` on a loop; the fleet is of a Ray of our own with four CPUs."""

    async def run() -> None:
        supervisor = Supervisor(config, FakeRouter(), Watcher())
        session = RaySession(is_own=True, node_id="n", resources={"CPU": 4.0})
        fleets = ClusterFleet(supervisor, [Deployment(config, "secret", None, False, "v1")], session)
        outcome = check(fleets.of_model(""))
        if isinstance(outcome, Coroutine):
            await outcome

    asyncio.run(run())


def test_groups_get_names_that_nobody_has_and_the_settings_of_their_version() -> None:
    def check(fleet: OneModelFleet) -> None:
        assert [group.name for group in fleet.make("decode", 3, "v1")] == ["decode-0", "decode-1", "decode-2"]
        fleet.add_version("v2", dataclasses.replace(CONFIG, decode=PoolConfig(num_cpus=2.0)), None)
        assert fleet.newest == "v2"
        (old,), (new,) = fleet.make("decode", 1, "v1"), fleet.make("decode", 1, "v2")
        assert (old.version, old.pool.bundle) == ("v1", {"CPU": 0.1})
        assert (new.version, new.pool.bundle) == ("v2", {"CPU": 2.0})

    in_fleet(check)


def test_what_is_not_there_is_named() -> None:
    async def check(fleet: OneModelFleet) -> None:
        for question, field, kind in (
            (fleet.remove("decode-7"), "name", "unknown"),
            (fleet.switch_role("decode-7", "prefill"), "name", "unknown"),
            (fleet.scale("decode", -1), "replicas", "invalid"),
            (fleet.add("decode", 0), "count", "invalid"),
            (fleet.add("decode", 1, "v9"), "version", "unknown"),
        ):
            with pytest.raises(FleetError) as caught:
                await question
            assert (caught.value.field, caught.value.kind) == (field, kind)

    in_fleet(check)


def test_a_fleet_that_is_held_says_so() -> None:
    def check(fleet: OneModelFleet) -> None:
        assert not fleet.state().is_held
        fleet.is_held = True
        assert (fleet.state().is_held, fleet.state().is_changing) == (True, True)

    in_fleet(check)


def test_while_an_update_is_under_way_only_that_takes_a_group_away() -> None:
    async def run() -> None:
        async with serving("prefill", "decode") as it:
            session = RaySession(is_own=True, node_id="n", resources={"CPU": 4.0})
            fleet = ClusterFleet(it.supervisor, [Deployment(CONFIG, "secret", None, False, "v1")], session).of_model("")
            fleet.is_held = True
            for question in (
                fleet.remove("decode-0"),
                fleet.switch_role("decode-0", "prefill"),
                fleet.scale("decode", 0),
            ):
                with pytest.raises(FleetError, match="an update is under way") as caught:
                    await question
                assert caught.value.kind == "conflict"
            assert not it.managed("decode-0").is_leaving
            await fleet.retire("decode-0")
            await it.until(lambda: it.supervisor.group("decode-0") is None)

    asyncio.run(run())


def test_the_last_version_is_not_forgotten() -> None:
    def check(fleet: OneModelFleet) -> None:
        with pytest.raises(FleetError, match="the only version"):
            fleet.forget_version("v1")
        fleet.add_version("v2", CONFIG, None)
        fleet.forget_version("v1")
        assert fleet.newest == "v2"

    in_fleet(check)


@pytest.mark.parametrize(
    ("pool", "most"),
    [(PoolConfig(), 40), (PoolConfig(num_cpus=1.0, tp=2), 2)],
)
def test_a_ray_of_our_own_says_how_many_groups_it_can_hold(pool: PoolConfig, most: int) -> None:
    def check(fleet: OneModelFleet) -> None:
        assert fleet.state().max_members == most

    in_fleet(check, dataclasses.replace(CONFIG, decode=pool))


@pytest.mark.parametrize(
    ("prefill", "decode", "reason"),
    [
        (PoolConfig(tp=2), PoolConfig(), "tp is 2 for prefill and 1 for decode"),
        (PoolConfig(labels={"gpu": "a"}), PoolConfig(), "labels is"),
        (PoolConfig(engine=EngineConfig(quantization="int8")), PoolConfig(), "engine.quantization is int8 for prefill"),
        (PoolConfig(), PoolConfig(engine=EngineConfig(device="cpu")), "engine.device is auto for prefill and cpu"),
    ],
)
def test_pools_that_differ_in_what_is_loaded_keep_their_workers(
    prefill: PoolConfig, decode: PoolConfig, reason: str
) -> None:
    found = cannot_switch(dataclasses.replace(CONFIG, prefill=prefill, decode=decode))
    assert found is not None
    assert reason in found


def test_pools_that_differ_in_sizes_and_steps_may_exchange_workers() -> None:
    prefill = PoolConfig(max_queued_tokens=99, engine=EngineConfig(kv_cache_mib=64, max_step_tokens=64, niceness=3))
    assert cannot_switch(dataclasses.replace(CONFIG, prefill=prefill)) is None


def test_no_group_is_added_whose_files_are_others_now(tmp_path: Path) -> None:
    """And that is reported: in a sentence, and to Prometheus."""
    model_dir = Path(shutil.copytree(DEMO, tmp_path / "model"))
    config = ClusterConfig(ServedModelConfig(str(model_dir)))
    changes: list[dict[str, str]] = []

    async def check(fleet: OneModelFleet) -> None:
        fleet.add_version("v2", config, Manifest.read(model_dir, DigestCache(None)))
        watch = FilesWatch(fleet.files, lambda changed: changes.append(dict(changed)))
        watch.num_refused["v2"] += 1
        await watch.look()
        assert changes == []
        (model_dir / "model.safetensors").write_bytes(b"")
        await watch.look()
        await watch.look()
        sentence = f"{model_dir}/model.safetensors has other content now (0 bytes, "
        assert [sorted(one) for one in changes] == [["v2"]]
        assert changes[0]["v2"].startswith(sentence)
        for question in (fleet.add("decode"), fleet.scale("decode", 3)):
            with pytest.raises(FleetError) as caught:
                await question
            assert caught.value.kind == "conflict"
            assert f"no worker of version v2 can be started: {sentence}" in caught.value.reason
        values = {
            (sample.name, sample.labels["version"]): sample.value
            for family in FilesPage({"m": watch}).collect()
            for sample in family.samples
        }
        assert values == {
            ("slipstream:model_files_changed", "v2"): 1.0,
            ("slipstream:model_files_refused_total", "v2"): 1.0,
        }
        shutil.copy2(DEMO / "model.safetensors", model_dir)
        await watch.look()
        assert changes[1:] == [{}]

    in_fleet(check, config)


def test_a_model_that_is_being_removed_gets_no_more_workers() -> None:
    config = CONFIG.with_models([ModelEntry("/m", "chat"), ModelEntry("/d", "draft")])

    async def run() -> None:
        async with serving(config=config) as it:
            session = RaySession(is_own=True, node_id="n", resources={"CPU": 4.0})
            deployments = [Deployment(alone, "secret", None, False, "v1") for alone in config.each()]
            fleets = ClusterFleet(it.supervisor, deployments, session, BudgetConfig(workers=3))
            with pytest.raises(FleetError, match=r"budget\.workers is 3, and 0 workers are there"):
                await fleets.of_model("chat").scale("decode", 4)
            on_gpus = config.with_models([ModelEntry("/m", "chat", decode=PoolConfig(num_gpus=1.0))])
            machine = RaySession(is_own=True, node_id="n", resources={"CPU": 4.0, "GPU": 4.0})
            alone = [Deployment(one, "secret", None, False, "v1") for one in on_gpus.each()]
            few = ClusterFleet(it.supervisor, alone, machine, BudgetConfig(gpus=2.0))
            with pytest.raises(FleetError, match=r"budget\.gpus is 2, and 0 are reserved; 3 more do not fit"):
                await few.of_model("chat").scale("decode", 3)

            async def drained() -> None:
                with pytest.raises(FleetError, match="draft is being removed"):
                    await fleets.of_model("draft").add("decode")

            await it.supervisor.end_model("draft", drained())
            with pytest.raises(FleetError, match="there is no worker 'decode-0'; there are: none"):
                fleets.of_worker("decode-0")
            assert fleets.state().members == ()

    asyncio.run(run())


def test_a_worker_moves_only_where_its_resources_and_ranks_are_those_of_the_other_model() -> None:
    chat, code = ModelEntry("/m", "chat"), ModelEntry("/d", "code", decode=PoolConfig(num_cpus=2.0))
    both = CONFIG.with_models([chat, code, ModelEntry("/e", "draft")])

    async def run() -> None:
        async with serving(config=both) as it:
            session = RaySession(is_own=True, node_id="n", resources={"CPU": 8.0})
            deployments = [Deployment(both.of_model(one), "secret", None, False) for one in ("chat", "code", "draft")]
            fleet = ClusterFleet(it.supervisor, deployments, session)
            chat_pool, code_pool = (fleet.pools_of(both.of_model(one))["decode"] for one in ("chat", "code"))
            await it.supervisor.add([it.group("decode-0", model="chat", pool=chat_pool)])
            await it.until(lambda: it.state_of("decode-0") == "ready")
            managed = it.managed("decode-0")
            why_new = await fleet.of_model("code").adopt(managed, "decode")
            assert why_new == "a decode worker of code needs 2 CPU, and decode-0 has 0.1 CPU"
            assert (managed.pending_change, managed.status.model) == (None, "chat")
            assert await fleet.move("decode-0", "draft", "decode") == Moved("decode-0")
            with pytest.raises(FleetError, match="only a worker that serves can move"):
                await fleet.move("decode-0", "chat", "decode")
            await it.until(lambda: it.state_of("decode-0") == "ready")
            assert managed.status.model == "draft"
            assert code_pool.bundle == {"CPU": 2.0}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("budget", "is_own", "free"),
    [
        (BudgetConfig(), True, (None, 2)),
        (BudgetConfig(workers=3, gpus=1), True, (3, 1)),
        (BudgetConfig(gpus=1), False, (None, 1)),
        (BudgetConfig(), False, (None, None)),
    ],
)
def test_further_models_may_take_what_the_machine_and_the_budget_leave(
    budget: BudgetConfig, is_own: bool, free: tuple[int | None, int | None]
) -> None:
    async def check() -> None:
        supervisor = Supervisor(CONFIG, FakeRouter(), Watcher())
        session = RaySession(is_own=is_own, node_id="n", resources={"CPU": 4.0, "GPU": 2.0})
        fleet = ClusterFleet(supervisor, [], session, budget)
        assert (fleet.num_free, fleet.num_free_gpus) == free

    asyncio.run(check())
