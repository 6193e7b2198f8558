"""How the death of a process is put into one sentence, and at which addresses processes are told to listen."""

from __future__ import annotations

import asyncio

import pytest
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup

from slipstream.cluster.actors import Endpoint, Place
from slipstream.cluster.config import ClusterConfig, ModelConfig
from slipstream.cluster.members import Deployment, GroupMember, first_death, reason_of
from slipstream.cluster.placement import pool_resources
from slipstream.kv_transfer.config import TransferConfig
from slipstream.workers.report import WorkerFailed


def task_error(cause: Exception) -> RayTaskError:
    return RayTaskError("run", "a long traceback\n of many lines", cause)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (task_error(WorkerFailed("the model cannot\nbe loaded")), "the model cannot be loaded"),
        (task_error(OSError(98, "Address already in use")), "[Errno 98] Address already in use"),
        (task_error(KeyError("layers")), "KeyError: 'layers'"),
        (task_error(MemoryError()), "MemoryError: MemoryError"),
        (
            RayActorError(error_msg="its worker process has died. Worker exit type: SYSTEM_ERROR"),
            "process is gone (killed, or crashed in native code)",
        ),
        (
            RayActorError(error_msg="Worker exit type: NODE_OUT_OF_MEMORY: the node running low on memory"),
            "process was killed because the machine ran out of memory",
        ),
        (RayActorError(error_msg="something\nnew"), "process is gone: something new"),
    ],
)
def test_a_reason_is_one_sentence(error: RayError, sentence: str) -> None:
    assert reason_of(error) == sentence


def test_of_ranks_that_die_together_the_one_with_a_reason_speaks() -> None:
    async def gone() -> None:
        raise RayActorError(error_msg="its worker process has died")

    async def failed() -> None:
        raise task_error(WorkerFailed("out of memory"))

    async def lives() -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        assert await first_death([gone(), failed(), lives()]) == "out of memory"
        assert await first_death([lives(), gone()]) == "process is gone (killed, or crashed in native code)"

    asyncio.run(check())


@pytest.mark.parametrize(
    ("spans_nodes", "configured", "host"),
    [
        (False, "127.0.0.1", "127.0.0.1"),
        (False, "0.0.0.0", "0.0.0.0"),
        (True, "127.0.0.1", "10.0.0.7"),
        (True, "::1", "10.0.0.7"),
        (True, "localhost", "10.0.0.7"),
        (True, "0.0.0.0", "0.0.0.0"),
        (True, "192.168.1.1", "192.168.1.1"),
    ],
)
def test_loopback_gives_way_to_the_address_of_the_node_when_there_are_others(
    spans_nodes: bool, configured: str, host: str
) -> None:
    deployment = Deployment(ClusterConfig(model=ModelConfig("/m")), "secret", None, spans_nodes)
    assert deployment.host(configured, "10.0.0.7") == host


@pytest.mark.parametrize(
    ("spans_nodes", "configured", "told"),
    [
        (False, "127.0.0.1", "127.0.0.1"),
        (True, "127.0.0.1", "10.0.0.7"),
        (False, "0.0.0.0", "10.0.0.7"),
        (True, "::", "10.0.0.7"),
        (True, "192.168.1.1", "192.168.1.1"),
    ],
)
def test_peers_are_told_an_address_for_pages_that_they_can_reach(spans_nodes: bool, configured: str, told: str) -> None:
    config = ClusterConfig(model=ModelConfig("/m"), kv_transfer=TransferConfig(host=configured))
    prefill, _ = pool_resources(config, num_gpus=0)
    member = GroupMember(Deployment(config, "secret", None, spans_nodes), prefill, 0, PlacementGroup.empty())
    member.places = [Place(1, "node", "10.0.0.7")]
    assert member._worker_config(Endpoint("10.0.0.1", 1234), 1).transfer.host == told
