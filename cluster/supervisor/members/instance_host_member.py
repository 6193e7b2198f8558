"""An instance host as a member of the cluster: the process on a node that starts instances of tensor models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slipstream.cluster.config.cluster_config import INSTANCE_HOST_CPUS
from slipstream.cluster.config.settings_by_name import by_name
from slipstream.cluster.supervisor.members.actor_handles import end_by_force, first_death, start_actor, stop_actor
from slipstream.cluster.supervisor.members.actors import ProcessLocation, TensorInstances
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.router.process.addresses import RepositoryAddresses
from slipstream.workers.instances.host_config import InstanceHostConfig

PYTHON_RUNTIME = "python-runtime"  # the interpreter of models, as in Triton's --backend-config
FINALIZE_S = 10.0  # in which instances may finalize
INSTANCE_HOST_MODULES = ("slipstream.workers.instances.instance_host",)


class InstanceHostMember:
    """`choose_node` says on which node its next incarnation is to run."""

    role = "instances"

    def __init__(self, number: int, deployment: Deployment, choose_node: Callable[[InstanceHostMember], str]) -> None:
        self.name = f"instances-{number}"
        self._deployment = deployment
        self._choose_node = choose_node
        self._actor: Any = None
        self._run: Any = None
        self._place: ProcessLocation | None = None

    @property
    def pids(self) -> list[int]:
        return [self._place.pid] if self._place else []

    @property
    def host(self) -> str:
        return self._place.node_ip if self._place else ""

    @property
    def node_id(self) -> str | None:
        """Where it runs."""
        return self._place.node_id if self._place else None

    async def launch(self) -> None:
        resources = {"CPU": INSTANCE_HOST_CPUS, "GPU": float(self._deployment.config.repository.num_gpus)}
        strategy = NodeAffinitySchedulingStrategy(self._choose_node(self), soft=True)
        self._actor = start_actor(TensorInstances, self._deployment, self.name, resources, strategy)
        self._place = await self._actor.warm_up.remote(INSTANCE_HOST_MODULES)

    async def serve(self, router: RepositoryAddresses, router_node_id: str) -> None:
        """Returns when the router has welcomed it. Raises RayError if it ends before that."""
        assert self._place is not None
        is_with_router = self._place.node_id == router_node_id and router.instances_path is not None
        config = InstanceHostConfig(
            router=f"unix:{router.instances_path}" if is_with_router else str(router.instances),
            token=self._deployment.worker_token,
            name=self.name,
            node_ip=self._place.node_ip,
            logs=str(self._deployment.log_dir or ""),
            router_tls=self._deployment.config.router.worker_tls,
            python=self._deployment.config.repository.backend_config.get("python", {}).get(PYTHON_RUNTIME, ""),
        )
        self._run = self._actor.run.remote(by_name(config))
        connected, run = (asyncio.ensure_future(_result(ref)) for ref in (self._actor.connected.remote(), self._run))
        try:
            await asyncio.wait([connected, run], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result()  # raises the reason
            await connected
        finally:
            connected.cancel()
            run.cancel()

    async def death(self) -> str:
        return await first_death([self._run])

    async def stop(self) -> None:
        """Lets the instances finalize."""
        await stop_actor(self._actor, [self._run], FINALIZE_S)

    def cut_off(self) -> None:
        """Ends its processes; it is started again."""
        end_by_force([self._actor])

    def kill(self) -> None:
        end_by_force([self._actor])
        self._actor = self._run = self._place = None


async def _result(reference: Any) -> Any:
    return await reference
