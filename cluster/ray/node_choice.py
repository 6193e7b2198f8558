"""Chooses the node for the next worker group of a pool, so that replicas are spread over the nodes.

Ray can spread the bundles of one placement group, but here each worker group has its own placement group, so that pools
can grow and shrink. So the node is chosen here and passed to Ray as a preference. If Ray knows better (because the node
has died, or others have taken its resources), it takes another one. A group that fits nowhere stays pending, which
makes Ray's autoscaler add a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.cluster.ray.bundles import Resources


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A live node. `resources` are all its resources, `taken` what worker groups of this cluster reserve there.
    `num_replicas` counts groups of the pool that is to grow, `num_groups` those of all pools."""

    node_id: str
    labels: Mapping[str, str]
    resources: Resources
    taken: Resources
    num_replicas: int
    num_groups: int


def choose_node(nodes: Sequence[NodeLoad], bundle: Resources, selector: Mapping[str, str]) -> str | None:
    """Of the nodes that have room and the required labels, the one with the fewest replicas and then the fewest groups.
    None if there is none."""
    fitting = [node for node in nodes if matches(node.labels, selector) and _has_room(node, bundle)]
    if not fitting:
        return None
    return min(fitting, key=lambda node: (node.num_replicas, node.num_groups, node.node_id)).node_id


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether labels satisfy a selector in Ray's syntax: `value`, `!value`, `in(a, b)` or `!in(a, b)` for each
    label."""
    return all(_matches(labels.get(key), wanted) for key, wanted in selector.items())


def _matches(label: str | None, wanted: str) -> bool:
    is_negated = wanted.startswith("!")
    wanted = wanted.removeprefix("!").strip()
    if wanted.startswith("in(") and wanted.endswith(")"):
        values = [value.strip() for value in wanted[len("in(") : -1].split(",")]
    else:
        values = [wanted]
    return (label in values) is not is_negated


def _has_room(node: NodeLoad, bundle: Resources) -> bool:
    def free(kind: str) -> float:
        return node.resources.get(kind, 0.0) - node.taken.get(kind, 0.0)

    return all(amount <= free(kind) + 1e-6 for kind, amount in bundle.items() if amount)
