"""Which node the next worker group of a pool should go to: replicas spread, as far as there are nodes.

Ray spreads the bundles of one placement group, but each worker group has a placement group of its own, so that pools
can grow and shrink. So the node is chosen here and told to Ray as a wish: where Ray knows better (the node has died
meanwhile, others have taken its resources) it takes another one, and a group that fits nowhere stays pending, which is
what makes Ray's autoscaler add a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.cluster.placement import Resources


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A node that lives. `resources` are all that it has, `taken` what worker groups of this cluster reserve there.
    `num_replicas` are groups of the pool that is to grow, `num_groups` those of any pool."""

    node_id: str
    labels: Mapping[str, str]
    resources: Resources
    taken: Resources
    num_replicas: int
    num_groups: int


def choose_node(nodes: Sequence[NodeLoad], bundle: Resources, selector: Mapping[str, str]) -> str | None:
    """The node with the fewest replicas, then the fewest groups, of those that have room and the labels. None: there
    is none."""
    fitting = [node for node in nodes if matches(node.labels, selector) and _has_room(node, bundle)]
    if not fitting:
        return None
    return min(fitting, key=lambda node: (node.num_replicas, node.num_groups, node.node_id)).node_id


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node has what a selector of Ray asks for: `value`, `!value`, `in(a, b)` or `!in(a, b)` for a label."""
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
