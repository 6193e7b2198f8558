"""What the hand-offs of a rank ask for: messages that are pages, from one rank's pool to another's.

`StagedTransport` gathers them into buffers for any `Transport`; `StreamedTransport` lets one pack them that can;
`SharedPoolTransport` lets the receiver copy them straight out of the sender's pool; `HostTransport` takes for each peer
the one that reaches it.

The rules of `Transport` hold here, too: one thread, calls back from within `progress` (and, where a link is down, from
within the call itself), no recall of a single message, `disconnect` ends everything on its link. What is sent must
stay as it is, and what is received belongs to the transport, until `done` or `landed` was called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.kv_transfer.pool import PageIds
from slipstream.kv_transfer.ticket import TransferAddress
from slipstream.kv_transfer.transport import Arrival, Done, Link, Transport, TransportEvents

Landed = Callable[[str | None, bool], None]
"""Called once when a message that was received touches the pool no more: why it did not come, or None, and then
whether it came whole, that is with the right checksum."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What a message carries: `heads` of `page_ids`, in one layer after the other. `seed` of the checksum says which
    message it is."""

    layer: int
    page_ids: PageIds
    heads: range
    seed: int
    num_layers: int = 1


class PageTransport(Protocol):
    @property
    def address(self) -> TransferAddress: ...

    @property
    def num_in_flight(self) -> int:
        """Messages whose `done` or `landed` is still to come."""

    def start(self, events: TransportEvents) -> None: ...

    def connect(self, address: TransferAddress) -> Link: ...

    def disconnect(self, link: Link) -> None: ...

    def send_record(self, link: Link, record: bytes) -> None: ...

    def joins_layers(self, link: Link) -> bool:
        """Messages on this link may have several layers, in either direction."""

    def can_send(self, link: Link, num_in_flight: int) -> bool:
        """There is room for one more message beside so many on this link, and others are not held up by it."""

    def can_receive(self, arrival: Arrival, num_in_flight: int) -> bool:
        """The same, beside so many from this peer."""

    def send(self, link: Link, tag: int, pages: Pages, done: Done) -> None: ...

    def receive(self, arrival: Arrival, pages: Pages, landed: Landed) -> None:
        """Each arrival must be received or discarded. `arrival.num_bytes` must be the pages' size."""

    def discard(self, arrival: Arrival) -> None:
        """Let an unwanted message go: its sender must not hang on it."""

    def progress(self) -> bool: ...

    def wait(self, timeout_s: float) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class DevicePool(Protocol):
    """A `PagePool` whose pages need not pass through host memory."""

    def page_transport(self, transport: Transport, message_bytes: int, staging_bytes: int) -> PageTransport:
        """Its own way over `transport`. `message_bytes` is the largest message, `staging_bytes` the memory for both
        directions together."""


class FireDrill:
    """Spoils one of `every` messages sent (0: none), to see whether the other end notices. One of several layers counts
    as so many."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._num_layers = 0

    def strikes(self, num_layers: int = 1) -> bool:
        """Call for each message that is sent."""
        before = self._num_layers
        self._num_layers += num_layers
        return bool(self._every) and before // self._every < self._num_layers // self._every
