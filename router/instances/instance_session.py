"""One connection of an instance, and what is under way on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.open_requests import OpenRequests
from slipstream.router.tensor_memory.lent_places import LentPlaces
from slipstream.router.tensor_memory.region_pool import RegionPool


@dataclass(slots=True, eq=False)
class InstanceSession:
    """`shared_pool` is the router's pool if the instance shares its memory. `calls` are those of the model to which no
    last response has been sent. `batch` is the one that is executed, `batch_numbers` are the `n` of its places,
    `null_numbers` those without a request."""

    connection: FrameConnection
    shared_pool: RegionPool | None
    requests: OpenRequests = field(default_factory=OpenRequests)
    lent: LentPlaces = field(default_factory=LentPlaces)
    calls: set[int] = field(default_factory=set)
    batch: int | None = None
    batch_numbers: list[int] = field(default_factory=list)
    null_numbers: list[int] = field(default_factory=list)

    def end(self) -> None:
        """The connection is gone: all that was under way has failed."""
        self.requests.end_all()
        self.lent.end_all()
        self.calls.clear()
        self.batch = None

    def give_back(self, places: list[tuple[str, int]]) -> None:
        """The outputs of a response have been read."""
        self.connection.send({"type": "release", "places": places})
