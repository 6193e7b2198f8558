"""What a worker does in its role: prefill or decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.router.protocol.messages import RouterMessage, TokenChunk, WorkerMessage
from slipstream.workers.interface.page_transfers import TransferOutcome


class Role(Protocol):
    """Follows every attempt to its end. Every call returns what to tell the router.

    No sockets, threads or clocks: times are given in seconds of any monotonic clock.
    """

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        """A message about an attempt or a peer."""

    def transfer_ended(self, outcome: TransferOutcome, now_s: float) -> Sequence[WorkerMessage]:
        """A transfer that this role began has ended on all ranks."""

    def sampled(self, outputs: Sequence[TokenChunk]) -> Sequence[WorkerMessage]:
        """The outputs of one engine step."""

    def expire(self, now_s: float) -> Sequence[WorkerMessage]:
        """Gives up what has waited too long."""

    def next_deadline_s(self) -> float | None:
        """When `expire` will next have something to do."""

    def refuse(self, reason: str) -> None:
        """Takes nothing new from now on: new attempts are answered with Failed(retryable, reason)."""

    def abandon(self) -> None:
        """The router is gone, and with it every attempt. Frees all pages; those under transfer once it has ended."""

    def fail_all(self, reason: str) -> Sequence[WorkerMessage]:
        """The engine is broken: returns Failed(retryable) for every attempt. Nothing may be called afterwards."""

    @property
    def num_attempts(self) -> int:
        """How many attempts hold pages or wait for them; 0: idle."""
