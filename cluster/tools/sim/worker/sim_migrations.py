"""Sequences that move to another simulated worker while they decode: both ends of it.

    source        decoding --Migrate: full pages leave, and it decodes on--> decoding
                  decoding --Migrate with freeze, end of the step--> frozen --Cancel: it goes on elsewhere--> gone
                                                                       '-----Resume--> decoding
    destination   reserved --pages: Copied--> reserved --Extend ... pages: HandedOff, Start--> decoding

As in `workers/roles/outgoing_migrations.py` and `workers/engine/scheduling/migrations.py`, with pages that are counted
and a network that takes its time. A sequence of T tokens has the KV of T - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, Key, Peer, SimAttempt
from slipstream.cluster.tools.sim.hardware.network import Transfer
from slipstream.cluster.tools.sim.worker.worker_context import WorkerContext
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    Adopt,
    Copied,
    Extend,
    Failed,
    Frozen,
    Migrate,
    Reserved,
)


@dataclass(slots=True, eq=False)
class _SimDeparture:
    """Pages of a sequence on their way to where it goes on, or to be sent as soon as it stands still."""

    job: SimAttempt
    to_key: Key
    ticket: HandoffTicket
    peer: Peer
    transfer: Transfer | None = None


class SimMigrations:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._departures: dict[Key, _SimDeparture] = {}  # by the attempt here

    # ---- destination

    def adopt(self, message: Adopt) -> None:
        context, num_room_tokens = self._context, message.num_room_tokens
        job = context.admit(message.request, AttemptState.RESERVED, max(num_room_tokens, 1))
        if job is not None:
            assert job.lease is not None
            job.is_adopted = True
            job.peer = context.find_peer(message.source)
            job.num_landed_pages = job.lease.num_known
            self._expect(job, num_room_tokens)

    def extend(self, message: Extend) -> None:
        """It has got on at its source, and so the next pages are wanted."""
        context, key = self._context, (message.request_id, message.attempt)
        job = context.jobs.get(key)
        if job is None or not job.is_adopted or job.state is not AttemptState.RESERVED:
            context.say(Failed(*key, "it is not being copied here", True))
            return
        job.told += len(message.token_ids)
        num_tokens = job.num_tokens + max(message.num_room_tokens, 1)
        if context.room.num_missing(job, num_tokens) > context.room.num_free:
            context.drop(job)
            context.say(Failed(*key, "no pages", True))
            return
        context.room.hold(job, num_tokens)
        self._expect(job, message.num_room_tokens)

    def _expect(self, job: SimAttempt, num_room_tokens: int) -> None:
        """Full pages only, or all that there will be when the source stands still."""
        assert job.lease is not None
        context = self._context
        job.is_whole = num_room_tokens > 0
        end = job.lease.num_pages if job.is_whole else (job.num_tokens - 1) // context.room.page_tokens
        first = min(job.num_landed_pages, end)
        job.ticket = context.tickets.issue(first, end - first)
        context.say(Reserved(*job.key, job.num_cached, job.ticket))
        if not job.is_whole and first == end:
            context.say(Copied(*job.key, job.ticket.transfer_id, 0, 0.0))

    def copied(self, job: SimAttempt, ticket: HandoffTicket, seconds: float) -> None:
        """A round that was not the last one has landed."""
        context = self._context
        job.num_landed_pages = ticket.first_page + ticket.num_pages
        context.room.remember(job, job.num_landed_pages * context.room.page_tokens)
        context.say(Copied(*job.key, ticket.transfer_id, ticket.num_pages * context.page_bytes, seconds))

    # ---- source

    def migrate(self, message: Migrate) -> None:
        context, to_key = self._context, (message.request_id, message.to_attempt)
        job = context.jobs.get((message.request_id, message.attempt))
        peer = context.find_peer(message.ticket.destination)
        if job is None or job.state is not AttemptState.DECODING or peer is None:
            context.say(Failed(*to_key, "it does not decode here" if peer is not None else "nobody is there", True))
            return
        self._call_off(job)
        departure = self._departures[job.key] = _SimDeparture(job, to_key, message.ticket, peer)
        if message.freeze:
            context.engine.stop_at_step_end(job)
        else:
            self._send(departure)

    def stopped(self, job: SimAttempt) -> None:
        """It stands still, and all its tokens have been told."""
        context, departure = self._context, self._departures[job.key]
        ticket, room = departure.ticket, context.room
        job.take_stock()
        room.hold(job, job.num_tokens)
        if job.num_tokens - 1 > (ticket.first_page + ticket.num_pages) * room.page_tokens:
            del self._departures[job.key]
            context.engine.decode(job)
            context.say(
                Failed(*departure.to_key, f"the ticket is too short: it has {job.num_tokens} tokens by now", True)
            )
            return
        job.state = AttemptState.FROZEN
        context.say(Frozen(*job.key, job.told))
        self._send(departure)

    def resume(self, job: SimAttempt | None) -> None:
        """The move is off."""
        if job is None:
            return
        self._call_off(job)
        if job.state is AttemptState.FROZEN:
            self._context.engine.decode(job)

    def ended(self, job: SimAttempt) -> None:
        """It is over here: nothing of it is sent any more."""
        if self._departures:
            self._call_off(job)

    def peer_lost(self, peer: PeerId) -> None:
        """What is on its way there will not arrive. Whether it goes on here is the router's to say."""
        for departure in list(self._departures.values()):
            if departure.peer.hello.worker == peer:
                self._call_off(departure.job)
                self._context.say(Failed(*departure.to_key, f"{peer.name} is gone", True))

    def _call_off(self, job: SimAttempt) -> None:
        departure = self._departures.pop(job.key, None)
        if departure is None:
            return
        if departure.transfer is not None:
            self._context.network.abort(departure.transfer)
        else:
            self._context.engine.go_on(job)

    def _send(self, departure: _SimDeparture) -> None:
        context, network = self._context, self._context.network
        num_bytes = float(departure.ticket.num_pages * context.page_bytes)
        departure.transfer = network.open(
            context.nic, departure.peer.nic, num_bytes, self._sent, self._unreachable, departure
        )
        network.finish(departure.transfer, 0.0)

    def _sent(self, departure: _SimDeparture, seconds: float) -> None:
        del self._departures[departure.job.key]
        if departure.peer.is_alive:
            departure.peer.landed(departure.to_key, departure.ticket, seconds)

    def _unreachable(self, departure: _SimDeparture) -> None:
        context, name = self._context, departure.peer.hello.worker.name
        del self._departures[departure.job.key]
        reason = f"pages could not be sent: {name} is out of reach"
        context.say(Failed(*departure.to_key, reason, True, is_unreachable=True))
        context.flush()
