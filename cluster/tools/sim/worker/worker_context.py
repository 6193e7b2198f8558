"""What the parts of a simulated worker ask of the worker that they belong to."""

from __future__ import annotations

from typing import Protocol

from slipstream.cluster.tools.sim.engine.page_allocator import PageRoom
from slipstream.cluster.tools.sim.engine.sim_attempt import Job, Key, Peer, State
from slipstream.cluster.tools.sim.engine.sim_engine import SimEngine
from slipstream.cluster.tools.sim.hardware.network import Card, Network
from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import EngineRequest, WorkerMessage
from slipstream.workers.transfers.ticket_issuer import TicketIssuer


class Home(Protocol):
    card: Card
    engine: SimEngine
    room: PageRoom
    jobs: dict[Key, Job]
    tickets: TicketIssuer
    page_bytes: int
    is_alive: bool

    @property
    def network(self) -> Network: ...

    def find_peer(self, peer: PeerId) -> Peer | None:
        """Another worker; None if it is dead."""

    def admit(self, request: EngineRequest, state: State, num_room_tokens: int) -> Job | None:
        """A new attempt with its pages. None if it has none; then the router has been told why."""

    def end(self, job: Job) -> None:
        """The attempt, which the engine does not have any more, has nothing left here."""

    def drop(self, job: Job) -> None:
        """Ends an attempt in any state."""

    def say(self, message: WorkerMessage) -> None:
        """Goes to the router with the next `flush`."""

    def flush(self) -> None: ...
