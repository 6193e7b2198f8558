"""The source's part of a migration: sequences that are leaving for another decode worker.

Migrate(copy) --> sending, and it decodes on --> Sent by all ranks
Migrate(freeze) --> frozen, sending --Cancel: it goes on elsewhere--> closing --all ranks quiet--> released
                       |
                       +--Resume--> decodes on; its pages stay until all ranks are quiet

A sequence whose next token is being computed is frozen when that step has ended. A failure is reported as `Failed` of
the attempt that the sequence was to become. Whether it then continues here is for the router to decide, because the
destination may already have everything it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import TransferKey
from slipstream.router.protocol.messages import Failed, Frozen, Migrate, WorkerMessage
from slipstream.workers.interface.engine import AttemptKey, Engine, EngineRequestError
from slipstream.workers.interface.page_transfers import PageTransfers, TransferOutcome


@dataclass(slots=True)
class _OutgoingMigration:
    key: AttemptKey
    to_attempt: int
    is_off: bool = False  # no longer wanted, or ended


@dataclass(slots=True)
class OutgoingMigrations:
    """The sends under way, each of some pages of a sequence that is moving away."""

    engine: Engine
    transfers: PageTransfers
    _by_transfer: dict[TransferKey, _OutgoingMigration] = field(default_factory=dict)
    _after_step: dict[AttemptKey, Migrate] = field(default_factory=dict)  # to be frozen

    def knows(self, transfer: TransferKey) -> bool:
        """Whether the transfer belongs to a sequence that is leaving."""
        return transfer in self._by_transfer

    def begin(self, message: Migrate) -> Sequence[WorkerMessage]:
        """Begins to send the pages that the ticket asks for, of a sequence that is frozen first if the message says so.
        Returns Frozen then, or Failed if the sequence does not have what is asked for."""
        key, ticket = (message.request_id, message.attempt), message.ticket
        failed_key = (message.request_id, message.to_attempt)
        if self.transfers.knows(ticket.key):
            return [Failed(*failed_key, "its ticket is already here", True)]
        migrations = self.engine.migrations
        out: list[WorkerMessage] = []
        try:
            migrations.check_ticket(key, ticket, message.freeze)
            if message.freeze and migrations.interrupt(key):
                self._after_step[key] = message
                return []
            if message.freeze:
                out.append(Frozen(*key, migrations.freeze(key)))
        except EngineRequestError as error:
            return [Failed(*failed_key, str(error), True)]
        self._by_transfer[ticket.key] = _OutgoingMigration(key, message.to_attempt)
        self.transfers.send(ticket, migrations.begin_send(key, ticket))
        return out

    def step_ended(self) -> Sequence[WorkerMessage]:
        """Begins what has waited for the end of a step."""
        if not self._after_step:
            return ()
        waiting, self._after_step = self._after_step, {}
        return [answer for message in waiting.values() for answer in self.begin(message)]

    def resume(self, key: AttemptKey) -> None:
        """The move is off: the sequence continues here."""
        self.end(key)
        self.engine.migrations.resume(key)

    def end(self, key: AttemptKey) -> None:
        """Cancels the sends of a sequence's pages, which are not wanted any more."""
        self._after_step.pop(key, None)
        for transfer, departure in self._by_transfer.items():
            if departure.key == key and not departure.is_off:
                departure.is_off = True
                self.transfers.cancel(transfer)

    def transfer_ended(self, outcome: TransferOutcome) -> Sequence[WorkerMessage]:
        """All ranks have released a transfer that `knows` knows."""
        departure = self._by_transfer.pop(outcome.transfer)
        self.engine.migrations.end_send(departure.key)
        if outcome.failure is None or departure.is_off:
            return []
        request_id = departure.key[0]
        reason = f"pages could not be sent: {outcome.failure}"
        return [Failed(request_id, departure.to_attempt, reason, True, outcome.is_unreachable)]
