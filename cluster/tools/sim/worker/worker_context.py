"""What the parts of a simulated worker ask of the worker that they belong to."""

from __future__ import annotations

from typing import Protocol

from slipstream.cluster.tools.sim.engine.page_allocator import PageAllocator
from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, Key, Peer, SimAttempt
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.cluster.tools.sim.hardware.network import Network, Nic
from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import EngineRequest, WorkerMessage
from slipstream.workers.transfers.ticket_issuer import TicketIssuer


class WorkerContext(Protocol):
    nic: Nic
    engine: SimEngine
    room: PageAllocator
    jobs: dict[Key, SimAttempt]
    tickets: TicketIssuer
    page_bytes: int
    is_alive: bool

    @property
    def network(self) -> Network: ...

    def find_peer(self, peer: PeerId) -> Peer | None:
        """Another worker; None if it is dead."""

    def admit(self, request: EngineRequest, state: AttemptState, num_room_tokens: int) -> SimAttempt | None:
        """A new attempt with its pages. None if it has none; then the router has been told why."""

    def end(self, job: SimAttempt) -> None:
        """The attempt, which the engine does not have any more, has nothing left here."""

    def drop(self, job: SimAttempt) -> None:
        """Ends an attempt in any state."""

    def say(self, message: WorkerMessage) -> None:
        """Goes to the router with the next `flush`."""

    def flush(self) -> None: ...
