"""What the hand-offs of a rank need to move pages: messages that are pages, from one rank's pool to another's.

`StagedMover` gathers pages into buffers for any `Transport`. `StreamedMover` is for a transport that can pack them
itself. With `ShmTransport` the receiver copies them straight out of the sender's pool.

The rules of `ControlChannel` apply here, too: one thread; callbacks come from within `progress` or `work` (or, if a
link is down, from within the call itself); a single message cannot be recalled; `disconnect` ends everything on its
link. Until `done` or `landed` is called, pages that are sent must not change, and pages that are received belong to the
mover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.kv_transfer.api.page_layout import PageIds
from slipstream.kv_transfer.api.transport import ControlChannel, Done, Link, MessageArrival, Transport

CHECKSUM_BYTES = 8  # of the XXH3-64 that follows the pages in a message

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


class PageMover(Protocol):
    """Moves messages that are pages, over links of a control channel."""

    @property
    def joins_layers(self) -> bool:
        """Whether messages may have several layers, in either direction."""

    @property
    def num_in_flight(self) -> int:
        """The number of messages whose `done` or `landed` is still to come."""

    def payload_bytes(self, arrival: MessageArrival) -> int:
        """The size of the pages in a message; negative if it is too short to be one."""

    def can_send(self, num_in_flight: int) -> bool:
        """Whether there is room for one more message beside so many on its link, without holding up other links."""

    def can_receive(self, num_in_flight: int) -> bool:
        """The same for receiving, beside so many from this peer."""

    def send(self, link: Link, tag: int, pages: MessagePages, done: Done) -> None: ...

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        """Receive an arrival into pages. Each arrival must be received or discarded, and must have the pages' size."""

    def discard(self, arrival: MessageArrival) -> None:
        """Drop an unwanted message, so that its sender does not wait for it for ever."""

    def work(self) -> bool:
        """Copies a little. True if there was anything to do. Called after each `progress` of the channel, and once
        before the first one, on the same thread."""

    def pause(self) -> bool:
        """If copies are on their way whose end no file descriptor reports, waits a moment and returns True. Otherwise
        the thread may sleep in the channel's `wait`."""

    def give_up(self) -> None:
        """The channel is closed: fails the messages that are still in flight."""


@dataclass(frozen=True, slots=True)
class PageTransport:
    """How a rank reaches its peers: the channel of all links, and what moves the pages of each."""

    channel: ControlChannel
    movers: tuple[PageMover, ...]
    mover_of: Callable[[Link], PageMover]

    @classmethod
    def of(cls, channel: ControlChannel, mover: PageMover) -> PageTransport:
        """One mover for all links."""
        return cls(channel, (mover,), lambda link: mover)


@runtime_checkable
class DevicePool(Protocol):
    """A `TransferPool` whose pages need not pass through host memory."""

    @property
    def device(self) -> object:
        """Its name is what PyTorch calls the device."""

    def page_mover(self, transport: Transport, message_bytes: int, staging_bytes: int) -> PageMover:
        """The pool's own `PageMover` over `transport`. `message_bytes` is the size of the largest message,
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
