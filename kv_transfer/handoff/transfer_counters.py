"""The running totals of an agent. Written by the transport thread; reading them from another is harmless."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    bytes_sent: int = 0
    bytes_received: int = 0
    transfers_sent: int = 0
    transfers_received: int = 0
    transfers_failed: int = 0
    seconds_sending: float = 0.0
    seconds_receiving: float = 0.0
    checksum_failures: int = 0
