"""What Slipstream 0.1.0 may be sent. It refuses messages with fields that it does not know."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.router.protocol.messages import Migrate, Prefill, RouterMessage

VERSION_OF_0_1_0 = 4
NUM_TICKET_FIELDS = 10


def for_0_1_0(message: RouterMessage) -> RouterMessage:
    """The message without newer fields. What they say is nothing that such a worker does: it has no page groups."""
    match message:
        case Prefill(ticket=ticket):
            return message._replace(ticket=_shortened(ticket))
        case Migrate(ticket=ticket):
            return replace(message, ticket=_shortened(ticket))
        case _:
            return message


def _shortened(ticket: HandoffTicket) -> HandoffTicket:
    return cast(HandoffTicket, tuple(ticket)[:NUM_TICKET_FIELDS])
