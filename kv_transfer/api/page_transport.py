"""What the hand-offs of a rank need of a transport: messages that are pages, from one rank's pool to another's.

`StagedTransport` gathers pages into buffers for any `Transport`. `StreamedTransport` is for a transport that can pack
them itself. `ShmTransport` lets the receiver copy them straight out of the sender's pool. `AutoTransport`
chooses the best one for each peer.

The rules of `Transport` apply here, too: one thread; callbacks come from within `progress` (or, if a link is down, from
within the call itself); a single message cannot be recalled; `disconnect` ends everything on its link. Until `done` or
`landed` is called, pages that are sent must not change, and pages that are received belong to the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.kv_transfer.api.ticket import TransferAddress
from slipstream.kv_transfer.api.transport import Done, Link, MessageArrival, Transport, TransportEvents
from slipstream.kv_transfer.memory.host_pages import PageIds

Landed = Callable[[str | None, bool], None]
"""Called once, when a received message no longer touches the pool: with the reason if it did not arrive, else None, and
with whether it arrived whole, that is, with the right checksum."""


@dataclass(frozen=True, slots=True)
class MessagePages:
    """The content of a message: `heads` of `page_ids`, one layer after the other. `seed` is that of the checksum, and
    different for each message."""

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
        """The number of messages whose `done` or `landed` is still to come."""

    def start(self, events: TransportEvents) -> None: ...

    def connect(self, address: TransferAddress) -> Link: ...

    def disconnect(self, link: Link) -> None: ...

    def send_record(self, link: Link, record: bytes) -> None: ...

    def joins_layers(self, link: Link) -> bool:
        """Whether messages on this link may have several layers, in either direction."""

    def can_send(self, link: Link, num_in_flight: int) -> bool:
        """Whether there is room for one more message beside so many on this link, without holding up other links."""

    def can_receive(self, arrival: MessageArrival, num_in_flight: int) -> bool:
        """The same for receiving, beside so many from this peer."""

    def send(self, link: Link, tag: int, pages: MessagePages, done: Done) -> None: ...

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        """Receive an arrival into pages. Each arrival must be received or discarded, and must have the pages' size."""

    def discard(self, arrival: MessageArrival) -> None:
        """Drop an unwanted message, so that its sender does not wait for it for ever."""

    def progress(self) -> bool: ...

    def wait(self, timeout_s: float) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class DevicePool(Protocol):
    """A `TransferPool` whose pages need not pass through host memory."""

    def page_transport(self, transport: Transport, message_bytes: int, staging_bytes: int) -> PageTransport:
        """The pool's own `PageTransport` over `transport`. `message_bytes` is the size of the largest message,
        `staging_bytes` the memory for both directions together."""


class FaultInjection:
    """Spoils one of `every` messages sent (0: none), to see whether the other end notices. A message of several layers
    counts as that many."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._num_layers = 0

    def should_corrupt(self, num_layers: int = 1) -> bool:
        """Whether to spoil this message. To be called for each message that is sent."""
        before = self._num_layers
        self._num_layers += num_layers
        return bool(self._every) and before // self._every < self._num_layers // self._every
