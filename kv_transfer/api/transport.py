"""What a hand-off needs of a wire, of whatever kind: a control channel, and messages of bytes.

A channel is driven by one thread: `progress` moves things and makes callbacks from within itself, and `wait` sleeps
until there is something to do. Only `wake` may be called from other threads.

    agent A                          agent B
    connect(address) --------------> on_link(link)          links are two-way; either end may send records
    send_record ---- hello --------> on_record(link, ...)
    on_record <----- welcome ------- send_record
    send(link, tag, buffer) -------> on_arrival(arrival)    a message has arrived, or waits at the sender
         done(None) <.............   receive(arrival, buffer, done)

The receiver chooses among the messages that have arrived, instead of posting a buffer for each one that it expects.
With bounded staging on both sides, this is what rules out deadlock: a buffer is never tied to a message that the sender
has not even started. There is no call to recall a single message, because no transport can do that once the two ends
have matched it (UCX ignores the attempt). A message runs to its end, and an arrival that is no longer wanted is
received into scrap memory. If the peer has stalled, `disconnect` ends everything on its link.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.kv_transfer.api.ticket import TransferAddress

Buffer = npt.NDArray[np.uint8]
"""One-dimensional, contiguous bytes."""

Done = Callable[[str | None], None]
"""Called once when an operation no longer touches its buffer: None when it succeeded, else why it did not."""

RECORD_BYTES = 512
"""The longest record."""


class TransportError(Exception):
    """The transport could not be opened, or a peer's address is not valid for it."""


class Link(Hashable, Protocol):
    """A connection to one peer's transport: a handle that only its own transport looks into."""


@dataclass(frozen=True, slots=True)
class MessageArrival:
    """A message on `link` that can be received now. `handle` is private to the transport."""

    link: Link
    tag: int
    num_bytes: int
    handle: Any


class TransportEvents(Protocol):
    """The callbacks of what drives a channel. They are called only from within `progress`."""

    def on_link(self, link: Link) -> None:
        """A peer has connected. Links that `connect` made are not announced."""

    def on_record(self, link: Link, record: bytes) -> None: ...

    def on_arrival(self, arrival: MessageArrival) -> None: ...

    def on_lost(self, link: Link, reason: str) -> None:
        """The link broke by itself. Its operations fail, before or after this. Not called after `disconnect`."""


class ControlChannel(Protocol):
    """Links to peers, and the records that go over them."""

    @property
    def address(self) -> TransferAddress: ...

    def start(self, events: TransportEvents) -> None:
        """From now on peers may connect. Call once, before anything else."""

    def connect(self, address: TransferAddress) -> Link:
        """Begin to connect. Returns at once; `on_lost` follows if there is no listener. Raises TransportError if the
        address is not valid."""

    def disconnect(self, link: Link) -> None:
        """End a link now, whatever the peer does: each of its operations fails through its `done`."""

    def send_record(self, link: Link, record: bytes) -> None:
        """A short control record, in order with the link's other records. Dropped if the link is dead."""

    def progress(self) -> bool:
        """Do what can be done now. True if anything happened."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until there may be something to do, `wake` is called, or the time is over. May return early."""

    def wake(self) -> None:
        """End the current or next `wait`. Thread-safe."""

    def close(self) -> None:
        """End all links and give back all resources. Remaining operations fail through their `done`."""


class Transport(ControlChannel, Protocol):
    """A channel whose links also carry messages of bytes. Buffers must stay unchanged until `done` was called for
    them."""

    @property
    def num_in_flight(self) -> int:
        """The number of sends and receives whose `done` is still to come."""

    def send(self, link: Link, tag: int, buffer: Buffer, done: Done) -> None: ...

    def receive(self, arrival: MessageArrival, buffer: Buffer, done: Done) -> None:
        """Take an arrival into the first `arrival.num_bytes` of `buffer`. Each arrival must be taken exactly once."""
