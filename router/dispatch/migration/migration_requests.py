"""Which running sequences are to leave their decode worker, until they have left or the tries are used up."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.migration import MigrationResult
from slipstream.router.requests.request_state import RequestState

MAX_TRIES = 5  # of one request


@dataclass(slots=True, eq=False)
class MigrationRequest:
    """A request is to leave `source`, for `to` if that is given. The request lasts until a migration has succeeded or
    the tries are used up, so it exists while a migration is under way."""

    source: WorkerState
    to: PeerId | None = None
    why: str = ""  # for the record of the request
    is_optional: bool = False  # tried once, and at once: the request may as well stay
    num_tries: int = 0
    avoid: set[PeerId] = field(default_factory=set)  # workers to which a migration has failed

    @property
    def is_spent(self) -> bool:
        """Whether there is no further try if the present one fails."""
        return self.is_optional or self.num_tries >= MAX_TRIES


class MigrationRequests(dict[str, MigrationRequest]):
    """Migration requests by request id, in the order in which they are tried, including those whose migration is under
    way. (A dict, because after every event the dispatcher checks whether there are any.)"""

    __slots__ = ()

    def add(self, state: RequestState, to: PeerId | None = None) -> None:
        """The request is to continue elsewhere, as soon as it decodes and there is room."""
        if state.decode is not None and state.migration is None:
            self[state.request_id] = MigrationRequest(state.decode, to)

    def failed(self, request_id: str, destination: WorkerState, result: MigrationResult) -> None:
        """The present try has failed. Unless the tries are used up, there will be another one: elsewhere, if it was not
        only for want of room."""
        request = self[request_id]
        if result != "refused":
            request.avoid.add(destination.peer)
        if request.is_spent:
            del self[request_id]
