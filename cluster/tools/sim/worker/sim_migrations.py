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

from slipstream.cluster.tools.sim.engine.sim_attempt import Job, Key, Peer, State
from slipstream.cluster.tools.sim.hardware.network import Transfer
from slipstream.cluster.tools.sim.worker.worker_context import Home
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
class _Departure:
    """Pages of a sequence on their way to where it goes on, or to be sent as soon as it stands still."""

    job: Job
    to_key: Key
    ticket: HandoffTicket
    peer: Peer
    transfer: Transfer | None = None


class Moves:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._departures: dict[Key, _Departure] = {}  # by the attempt here

    # ---- destination

    def adopt(self, message: Adopt) -> None:
        home, num_room_tokens = self._home, message.num_room_tokens
        job = home.admit(message.request, State.RESERVED, max(num_room_tokens, 1))
        if job is not None:
            assert job.lease is not None
            job.is_adopted = True
            job.peer = home.find_peer(message.source)
            job.num_landed_pages = job.lease.num_known
            self._expect(job, num_room_tokens)

    def extend(self, message: Extend) -> None:
        """It has got on at its source, and so the next pages are wanted."""
        home, key = self._home, (message.request_id, message.attempt)
        job = home.jobs.get(key)
        if job is None or not job.is_adopted or job.state is not State.RESERVED:
            home.say(Failed(*key, "it is not being copied here", True))
            return
        job.told += len(message.token_ids)
        num_tokens = job.num_tokens + max(message.num_room_tokens, 1)
        if home.room.num_missing(job, num_tokens) > home.room.num_free:
            home.drop(job)
            home.say(Failed(*key, "no pages", True))
            return
        home.room.hold(job, num_tokens)
        self._expect(job, message.num_room_tokens)

    def _expect(self, job: Job, num_room_tokens: int) -> None:
        """Full pages only, or all that there will be when the source stands still."""
        assert job.lease is not None
        home = self._home
        job.is_whole = num_room_tokens > 0
        end = job.lease.num_pages if job.is_whole else (job.num_tokens - 1) // home.room.page_tokens
        first = min(job.num_landed_pages, end)
        job.ticket = home.tickets.issue(first, end - first)
        home.say(Reserved(*job.key, job.num_cached, job.ticket))
        if not job.is_whole and first == end:
            home.say(Copied(*job.key, job.ticket.transfer_id, 0, 0.0))

    def copied(self, job: Job, ticket: HandoffTicket, seconds: float) -> None:
        """A round that was not the last one has landed."""
        home = self._home
        job.num_landed_pages = ticket.first_page + ticket.num_pages
        home.room.remember(job, job.num_landed_pages * home.room.page_tokens)
        home.say(Copied(*job.key, ticket.transfer_id, ticket.num_pages * home.page_bytes, seconds))

    # ---- source

    def migrate(self, message: Migrate) -> None:
        home, to_key = self._home, (message.request_id, message.to_attempt)
        job = home.jobs.get((message.request_id, message.attempt))
        peer = home.find_peer(message.ticket.destination)
        if job is None or job.state is not State.DECODING or peer is None:
            home.say(Failed(*to_key, "it does not decode here" if peer is not None else "nobody is there", True))
            return
        self._call_off(job)
        departure = self._departures[job.key] = _Departure(job, to_key, message.ticket, peer)
        if message.freeze:
            home.engine.stop_at_step_end(job)
        else:
            self._send(departure)

    def stopped(self, job: Job) -> None:
        """It stands still, and all its tokens have been told."""
        home, departure = self._home, self._departures[job.key]
        ticket, room = departure.ticket, home.room
        job.take_stock()
        room.hold(job, job.num_tokens)
        if job.num_tokens - 1 > (ticket.first_page + ticket.num_pages) * room.page_tokens:
            del self._departures[job.key]
            home.engine.decode(job)
            home.say(Failed(*departure.to_key, f"the ticket is too short: it has {job.num_tokens} tokens by now", True))
            return
        job.state = State.FROZEN
        home.say(Frozen(*job.key, job.told))
        self._send(departure)

    def resume(self, job: Job | None) -> None:
        """The move is off."""
        if job is None:
            return
        self._call_off(job)
        if job.state is State.FROZEN:
            self._home.engine.decode(job)

    def ended(self, job: Job) -> None:
        """It is over here: nothing of it is sent any more."""
        if self._departures:
            self._call_off(job)

    def peer_lost(self, peer: PeerId) -> None:
        """What is on its way there will not arrive. Whether it goes on here is the router's to say."""
        for departure in list(self._departures.values()):
            if departure.peer.hello.worker == peer:
                self._call_off(departure.job)
                self._home.say(Failed(*departure.to_key, f"{peer.name} is gone", True))

    def _call_off(self, job: Job) -> None:
        departure = self._departures.pop(job.key, None)
        if departure is None:
            return
        if departure.transfer is not None:
            self._home.network.abort(departure.transfer)
        else:
            self._home.engine.go_on(job)

    def _send(self, departure: _Departure) -> None:
        home, network = self._home, self._home.network
        num_bytes = float(departure.ticket.num_pages * home.page_bytes)
        departure.transfer = network.open(
            home.card, departure.peer.card, num_bytes, self._sent, self._unreachable, departure
        )
        network.finish(departure.transfer, 0.0)

    def _sent(self, departure: _Departure, seconds: float) -> None:
        del self._departures[departure.job.key]
        if departure.peer.is_alive:
            departure.peer.landed(departure.to_key, departure.ticket, seconds)

    def _unreachable(self, departure: _Departure) -> None:
        home, name = self._home, departure.peer.hello.worker.name
        del self._departures[departure.job.key]
        reason = f"pages could not be sent: {name} is out of reach"
        home.say(Failed(*departure.to_key, reason, True, is_unreachable=True))
        home.flush()
