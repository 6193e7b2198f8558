"""What a worker group has reserved in Ray: a placement group with a bundle on each of its hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from slipstream.cluster.ray.bundles import PoolResources

NODE_LABEL = "ray.io/node-id"  # which Ray gives to each of its nodes

NodeChoice = Callable[[PoolResources], str | None]


class GroupRoom:
    """Empty, or reserved for one pool from `reserve` to `release`. Ray has room for all hosts of a group or for none.

    `choose_node` returns the preferred node for a group of one host; Ray takes another one if it has to.
    """

    def __init__(self, choose_node: NodeChoice) -> None:
        self._choose_node = choose_node
        self._reserved: PoolResources | None = None
        self._room: PlacementGroup | None = None
        self.preferred_node: str | None = None

    async def reserve(self, pool: PoolResources) -> None:
        """Asks Ray for room, unless what is reserved suits the pool. If there is none, Ray's autoscaler adds a node."""
        if self._reserved is not None and self._reserved.fills_same_room_as(pool) and not await self.has_lost_hosts():
            return
        self.release()
        self.preferred_node = self._choose_node(pool)
        on_nodes = {NODE_LABEL: "STRICT_PACK" if pool.num_hosts == 1 else "STRICT_SPREAD"}
        self._room = placement_group(
            [dict(pool.bundle) for _ in range(pool.num_hosts)],
            topology_strategy=on_nodes | ({pool.shared_label: "STRICT_PACK"} if pool.shared_label else {}),
            _soft_target_node_id=self.preferred_node,
            bundle_label_selector=[dict(pool.labels)] * pool.num_hosts if pool.labels else None,
        )
        self._reserved = pool

    async def found(self) -> None:
        """Returns when Ray has found what is reserved."""
        assert self._room is not None
        await self._room.ready()

    def release(self) -> None:
        """Gives the room back, or stops waiting for it."""
        if self._room is not None:
            remove_placement_group(self._room)
        self._room = self._reserved = self.preferred_node = None

    async def has_lost_hosts(self) -> bool:
        """Whether a host of a group of several is gone. Ray looks for another one beside those that are left, which
        with a shared label may be in vain while other hosts have room for the whole group."""
        if self._room is None or self._reserved is None or self._reserved.num_hosts == 1:
            return False
        table: dict[str, Any] = await asyncio.to_thread(placement_group_table, self._room)  # asks Ray's server
        return bool(table["state"] == "RESCHEDULING")

    def on_hosts(self) -> list[PlacementGroupSchedulingStrategy]:
        """For each host of the group, what places a process there."""
        assert self._room is not None
        assert self._reserved is not None
        return [PlacementGroupSchedulingStrategy(self._room, n) for n in range(self._reserved.num_hosts)]
