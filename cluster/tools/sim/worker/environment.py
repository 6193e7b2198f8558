"""What a simulated worker finds around it: the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from slipstream.cluster.tools.sim.engine.page_names import PageNames
from slipstream.cluster.tools.sim.hardware.network import Network
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import WorkerMessage

Worker = TypeVar("Worker")


class Environment(Protocol[Worker]):
    clock: VirtualClock
    network: Network

    def tell(self, worker: Worker, messages: Sequence[WorkerMessage]) -> None:
        """To the router, over the network."""

    def find(self, peer: PeerId) -> Worker | None:
        """Another worker, if it lives."""

    def facts(self, request_id: str) -> tuple[int, PageNames | None]:
        """Where the model will stop by itself, and the names of the prompt's pages."""

    def busy_changed(self, worker: Worker) -> None:
        """It has begun to compute, or has nothing to do any more."""

    def drained(self, worker: Worker) -> None:
        """It was asked to go and has nothing left."""
