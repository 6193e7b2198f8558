"""The events that end a transfer, and the totals of an agent."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.kv_transfer.api.ticket import TransferKey


@dataclass(frozen=True, slots=True)
class Received:
    """All pages have arrived and hold exactly what was sent. `seconds` is the time from the first arrival to the last
    copy."""

    key: TransferKey
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """The content of the pages is undefined, and nothing writes to them any more. `is_unreachable`: the peer could not
    be reached, or the link to it broke."""

    key: TransferKey
    reason: str
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """The pages have been read for the last time."""

    key: TransferKey
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SendFailed:
    """Not all pages were sent, and nothing reads them any more. For `is_unreachable` see ReceiveFailed."""

    key: TransferKey
    reason: str
    is_unreachable: bool = False


TransferEvent = Received | ReceiveFailed | Sent | SendFailed


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Totals since the agent started; the last four are gauges. Seconds are summed over transfers."""

    bytes_sent: int = 0
    bytes_received: int = 0
    transfers_sent: int = 0
    transfers_received: int = 0
    transfers_failed: int = 0
    seconds_sending: float = 0.0
    seconds_receiving: float = 0.0
    checksum_failures: int = 0
    leases_held: int = 0  # receiving transfers that have not ended
    sends_held: int = 0  # sending transfers that have not ended
    messages_in_flight: int = 0
    links_open: int = 0
