"""The nodes on which instance hosts run: one on the router's node, and the others each on a node of its own."""

from __future__ import annotations

import ray

from slipstream.cluster.ray.bundles import CannotPlace
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.members.instance_host_member import InstanceHostMember
from slipstream.cluster.supervisor.members.router_member import RouterMember


def instance_hosts(deployment: Deployment, router: RouterMember) -> list[InstanceHostMember]:
    """The instance hosts of a cluster, of which nothing runs so far; none without a repository. Raises CannotPlace if
    there are fewer nodes."""
    repository = deployment.config.repository
    if not repository.is_on:
        return []
    num_nodes = len(_living_nodes())
    if repository.hosts > num_nodes:
        raise CannotPlace(f"repository.hosts is {repository.hosts}, and the Ray cluster has {num_nodes} nodes")
    hosts: list[InstanceHostMember] = []

    def choose_node(host: InstanceHostMember) -> str:
        others = {other.node_id for other in hosts if other is not host}
        return free_node(_living_nodes(), router.node_id, others, is_with_router=host is hosts[0])

    hosts += [InstanceHostMember(number, deployment, choose_node) for number in range(repository.hosts)]
    return hosts


def free_node(living: list[str], router: str, taken: set[str | None], *, is_with_router: bool) -> str:
    """The router's node, or else one that has no other host. Where a node has died there may be none; then it shares
    that of the router."""
    if is_with_router:
        return router
    return next((node for node in living if node != router and node not in taken), router)


def _living_nodes() -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
