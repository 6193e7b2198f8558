"""How the death of a process is put into one sentence."""

from __future__ import annotations

import asyncio

import pytest
from ray.exceptions import RayActorError, RayError, RayTaskError

from slipstream.cluster.config import ClusterConfig, ModelConfig
from slipstream.cluster.members import Deployment, first_death, reason_of
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
