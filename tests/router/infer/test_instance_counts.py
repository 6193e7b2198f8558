"""Instances of a version come and go while it serves, and are spread over hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.infer.scaling import instance_scaler, instance_scaling
from slipstream.router.infer.scaling.instance_scaling import InstanceScaling
from slipstream.router.infer.served_version import ScaledInstances
from slipstream.router.tensors.infer_error import InferError
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab
from tests.support.router.until import until

TENSORS = """input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }"""
PID = """
class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(os.path.dirname(__file__), "..", "..", "refuses")):
            raise ValueError("it refuses")

    def execute(self, requests):
        value = value_of(requests[0])
        time.sleep(value.ravel()[0] / 1000)
        return [response(np.full(value.shape, os.getpid()))]
"""
NUMBER = """
class TritonPythonModel:
    def initialize(self, args):
        self.number = int(args["model_instance_name"].rpartition("_")[2])

    def execute(self, requests):
        return [response(np.full((1, 1), self.number)) for _ in requests]
"""
SEQUENCE = "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 60000000 }"


def configured(count: int, more: str = "") -> str:
    return f"{TENSORS} {more} instance_group {{ kind: KIND_CPU count: {count} }}"


def instances_of(lab: RepositoryLab) -> ScaledInstances:
    instances = lab.service.models["m"].serving["1"].instances
    assert instances is not None
    return instances


async def pids(lab: RepositoryLab, num_requests: int = 8) -> set[int]:
    """Of the instances that answer requests at the same time."""
    answers = await asyncio.gather(*(lab.infer("m", 60) for _ in range(num_requests)))
    return {values[0][0] for values in answers}


async def reload(lab: RepositoryLab, config: str) -> None:
    (lab.folder / "m" / "config.pbtxt").write_text(f'backend: "python" {config}')
    await lab.repository.load("m")


@in_loop
async def test_a_reload_that_changes_only_the_number_leaves_the_other_instances_alone(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"m": (configured(1), PID)}) as lab:
        first = await pids(lab)
        await reload(lab, configured(3))
        three = await pids(lab)
        assert first < three
        assert len(three) == 3
        assert b'"count":3' in lab.service.spec_of("m").config_json.replace(b" ", b"")
        running = [asyncio.create_task(lab.infer("m", 300)) for _ in range(3)]
        await until(lambda: lab.port.ledger.num_requests == 3)
        await reload(lab, configured(1))
        assert {one[0][0] for one in await asyncio.gather(*running)} == three  # they end their requests first
        await until(lambda: lab.port.ledger.num_launches == 1)
        assert await pids(lab) == first


@in_loop
async def test_a_reload_whose_further_instances_fail_leaves_it_as_it_was(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"m": (configured(1), PID)}) as lab:
        before = await pids(lab)
        (lab.folder / "refuses").touch()
        with pytest.raises(InferError, match="it refuses"):
            await reload(lab, configured(2))
        assert await pids(lab) == before
        assert instances_of(lab).count == 1


@in_loop
async def test_a_sequence_keeps_an_instance_that_is_to_go_until_its_end(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"m": (configured(2, SEQUENCE), NUMBER)}) as lab:
        at = {await lab.in_sequence("m", name, 0, start=True): name for name in (1, 2)}
        stays, leaves = at[0], at[1]
        await instances_of(lab).set_count(1)
        assert await lab.in_sequence("m", leaves, 0) == 1
        third = asyncio.create_task(lab.in_sequence("m", 3, 0, start=True, end=True))
        assert await lab.in_sequence("m", leaves, 0, end=True) == 1  # its slot is not for the third one
        await until(lambda: lab.port.ledger.num_launches == 1)
        assert await lab.in_sequence("m", stays, 0, end=True) == 0
        assert await third == 0


@in_loop
async def test_instances_are_spread_over_the_hosts_and_a_later_one_gets_its_share(tmp_path: Path) -> None:
    models = {"m": (configured(3), PID), "other": (configured(1), PID)}
    async with repository_lab(tmp_path, models, hosts=2) as lab:
        assert sorted(instances_of(lab).hosts.values()) == [1, 2]
        lab.add_host("c")
        await until(lambda: instances_of(lab).hosts == {"a": 1, "b": 1, "c": 1})
        assert len(await pids(lab)) == 3
        await lab.remove_host("c")
        await until(lambda: sorted(instances_of(lab).hosts.values()) == [1, 2])
        assert len(await pids(lab)) == 3


@in_loop
async def test_an_instance_moves_only_when_its_requests_have_ended(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"m": (configured(2), PID)}) as lab:
        running = [asyncio.create_task(lab.infer("m", 500)) for _ in range(2)]
        await until(lambda: lab.port.ledger.num_requests == 2)
        lab.add_host("b")
        await asyncio.gather(*running)
        await until(lambda: instances_of(lab).hosts == {"a": 1, "b": 1})


@in_loop
async def test_the_count_of_the_deployment_is_used_instead_of_that_of_the_model(tmp_path: Path) -> None:
    counts = {"m": InstanceCountsConfig(count=2)}
    async with repository_lab(tmp_path, {"m": (configured(1), PID)}, instances=counts) as lab:
        assert len(await pids(lab)) == 2


@in_loop
async def test_instances_come_with_the_demand_and_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"m": InstanceCountsConfig(min=1, max=2, shrink_after_s=2.0)}
    monkeypatch.setattr(instance_scaling, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(instance_scaler, "GROW_AFTER_S", 0.6)
    async with repository_lab(tmp_path, {"m": (configured(1), PID)}, instances=counts) as lab:
        scaling = InstanceScaling(lab.service, lab.repository.counts, None)
        looking = asyncio.create_task(scaling.run())
        while len(instances_of(lab).hosts) and sum(instances_of(lab).hosts.values()) < 2:
            await pids(lab, 4)
        assert [(one.before, one.after) for one in scaling.decisions] == [(1, 2)]
        await until(lambda: sum(instances_of(lab).hosts.values()) == 1)
        (status,) = scaling.status()
        assert (status.count, status.min, status.max, status.hosts) == (1, 1, 2, {"a": 1})
        assert status.latest.endswith("1 were enough for 2 s")
        scaling.set_counts("m", InstanceCountsConfig(count=2))
        await until(lambda: sum(instances_of(lab).hosts.values()) == 2)
        looking.cancel()
        await asyncio.wait([looking])


@in_loop
async def test_while_a_planner_asks_for_signals_it_decides_how_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"m": InstanceCountsConfig(min=1, max=3, shrink_after_s=1.0)}
    async with repository_lab(tmp_path, {"m": (configured(1), PID)}, instances=counts) as lab:
        scaling = InstanceScaling(lab.service, lab.repository.counts, None)
        (before,) = scaling.signals()
        running = [asyncio.create_task(lab.infer("m", 100)) for _ in range(3)]
        await until(lambda: scaling.signals()[0].num_waiting == 2)
        scaling.resize("m", "1", 2, "a planner says so")
        scaling.resize("gone", "1", 2, "a planner says so")
        assert scaling.signals()[0].is_changing
        await until(lambda: not scaling.signals()[0].is_changing)
        await asyncio.gather(*running)
        (after,) = scaling.signals()
        assert (before.count, after.count, after.num_executed - before.num_executed) == (1, 2, 3)
        assert after.busy_s - before.busy_s >= 0.3
        assert after.queue_s > before.queue_s
        now = asyncio.get_running_loop().time()
        for second in range(30):
            scaling.look(now + second)  # the scaler would let one go
        assert [one.reason for one in scaling.decisions] == ["a planner says so"]
        for second in range(30):
            scaling.look(now + instance_scaling.PLANNED_S + 1.0 + second)  # the planner has gone
        assert [one.after for one in scaling.decisions] == [2, 1]
        await until(lambda: sum(instances_of(lab).hosts.values()) == 1)
