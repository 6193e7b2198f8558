"""The two ends of a hand-off, as state machines without a wire or a clock.

                     all messages done, nothing in flight
       +--------+ --------------------------------------------> +-------+
    -> | active |                                               | owned |   FinishTransfer(ok)
       +--------+                                               +-------+
           | cancel, lease expired, peer lost or aborted,
           | a message failed, came twice, has the wrong size or checksum
           v
       +---------+  nothing in flight any more                  +--------+
       | closing | -------------------------------------------> | failed |  FinishTransfer(not ok)
       +---------+                                              +--------+
           | still in flight after `grace_s`
           +--> CloseLinks: the other end has stalled; ending its links ends the operations

`FinishTransfer` comes exactly once, and from then on no operation can touch pages any more. That is why a failed
hand-off waits in `closing`: a posted message cannot be recalled, only run to its end.

Every call takes the time, `now` in seconds of any steady clock, and returns what is to be done, in order. An end that
has made no progress for `lease_s` expires. For one that only waits for its turn on a link, the progress of others
counts (`link_moved`), but for `MAX_WAIT_LEASES` at most. The sender decides the order of messages: oldest first, as
slabs become ready. The receiver accepts any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from slipstream.kv_transfer.handoff.message_plan import Message, StreamPlan, TicketError

GRACE_S = 2.0
MAX_WAIT_LEASES = 20  # behind others on a link; if the other end has forgotten this hand-off, only this bound ends it


@dataclass(frozen=True, slots=True)
class Land:
    """Receive this message into its pages, then call `received`."""

    plan: StreamPlan
    message: Message


@dataclass(frozen=True, slots=True)
class NotifyPeers:
    """Let the other ends know that this hand-off has failed here."""

    reason: str


@dataclass(frozen=True, slots=True)
class CloseLinks:
    """End the links of this hand-off, because operations on them do not end."""


@dataclass(frozen=True, slots=True)
class FinishTransfer:
    """The hand-off has ended and holds nothing any more. `reason` is None if it succeeded. `seconds` is the time from
    the first to the last byte. `is_unreachable`: the peer could not be reached, or the link to it broke."""

    reason: str | None
    num_bytes: int
    seconds: float
    is_unreachable: bool = False


Action = Land | NotifyPeers | CloseLinks | FinishTransfer


class HandoffState(Enum):
    ACTIVE = "active"
    CLOSING = "closing"
    OWNED = "owned"
    FAILED = "failed"


class _Handoff:
    """What both ends have in common: the lease, failure, and ending exactly once."""

    def __init__(self, plans: Sequence[StreamPlan], now: float, lease_s: float, grace_s: float) -> None:
        self.plans = tuple(plans)
        self.state = HandoffState.ACTIVE
        self.num_in_flight = 0
        self._num_done = 0
        self._num_messages = sum(plan.num_messages for plan in plans)
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._deadline = now + lease_s
        self._progress_s = now
        self._began: float | None = None
        self._reason: str | None = None
        self._is_unreachable = False

    @property
    def is_over(self) -> bool:
        return self.state in (HandoffState.OWNED, HandoffState.FAILED)

    @property
    def deadline(self) -> float:
        """The latest time at which `tick` has to be called."""
        return self._deadline

    def begin(self, now: float) -> list[Action]:
        """To be called once, first of all. A ticket for no pages is done at once."""
        return self._settle(now)

    def fail(self, reason: str, now: float, tell_peers: bool = True, *, is_unreachable: bool = False) -> list[Action]:
        """Cancel, or give up for a reason from outside. Has no effect if the hand-off is already closing or has
        ended."""
        if self.state is not HandoffState.ACTIVE:
            return []
        self.state = HandoffState.CLOSING
        self._reason = reason
        self._is_unreachable = is_unreachable
        self._deadline = now + self._grace_s
        actions: list[Action] = [NotifyPeers(reason)] if tell_peers else []
        return actions + self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """To be called at `deadline`; earlier calls change nothing."""
        if self.is_over or now < self._deadline:
            return []
        if self.state is HandoffState.ACTIVE:
            return self.fail(f"no progress for {self._lease_s:g} s", now)
        self._deadline = now + self._grace_s
        return [CloseLinks()]

    def link_moved(self, at_s: float) -> None:
        """Other hand-offs made progress, at that time, on the link that this one waits for."""
        if self.state is HandoffState.ACTIVE:
            latest = self._progress_s + MAX_WAIT_LEASES * self._lease_s
            self._deadline = max(self._deadline, min(at_s + self._lease_s, latest))

    def _progress(self, now: float) -> None:
        if self.state is HandoffState.ACTIVE:
            self._progress_s = now
            self._deadline = now + self._lease_s

    def _start_one(self, now: float) -> None:
        self.num_in_flight += 1
        if self._began is None:
            self._began = now
        self._progress(now)

    def _end_one(self) -> None:
        assert self.num_in_flight > 0
        self.num_in_flight -= 1

    def _settle(self, now: float) -> list[Action]:
        """Finish if there is nothing left to wait for."""
        if self.is_over or self.num_in_flight:
            return []
        if self.state is HandoffState.ACTIVE and self._num_done < self._num_messages:
            return []
        self.state = HandoffState.OWNED if self.state is HandoffState.ACTIVE else HandoffState.FAILED
        num_bytes = sum(plan.payload_bytes for plan in self.plans) if self.state is HandoffState.OWNED else 0
        seconds = 0.0 if self._began is None else now - self._began
        return [FinishTransfer(self._reason, num_bytes, seconds, self._is_unreachable)]


class SendHandoff(_Handoff):
    """The end of one source rank. `plans` has a plan for each destination rank that this rank sends to."""

    def __init__(self, plans: Sequence[StreamPlan], now: float, lease_s: float, grace_s: float = GRACE_S) -> None:
        super().__init__(plans, now, lease_s, grace_s)
        num_layers = plans[0].ticket.num_layers
        self._next_slab = [0] * num_layers  # slabs of the layer before this one are ready or sent
        self._ready: dict[StreamPlan, deque[int]] = {plan: deque() for plan in plans}

    def pages_ready(self, layer: int, num_pages: int, now: float) -> bool:
        """The first `num_pages` pages of the sequence hold this layer. Repeats and smaller numbers change nothing.

        True if messages became ready. Slabs are the same in every stream: they depend on the ticket alone.
        """
        if self.state is not HandoffState.ACTIVE or not 0 <= layer < len(self._next_slab):
            return False
        first, slab = self._next_slab[layer], self.plans[0].slabs_within(num_pages)
        if slab <= first:
            return False
        self._next_slab[layer] = slab
        for plan, ready in self._ready.items():
            ready.extend(plan.index(s, layer) for s in range(first, slab))
        self._progress(now)
        return True

    def all_layers_ready(self, num_pages: int, now: float) -> bool:
        """The same as calling `pages_ready` for each layer, except that messages then leave slab by slab."""
        num_slabs = self.plans[0].slabs_within(num_pages)
        if self.state is not HandoffState.ACTIVE or not num_slabs:
            return False
        self._next_slab = [num_slabs] * len(self._next_slab)
        for plan, ready in self._ready.items():
            ready.extend(range(plan.index(num_slabs, 0)))
        self._progress(now)
        return True

    def has_ready(self, plan: StreamPlan) -> bool:
        """Whether `take` would return a message of this stream."""
        return self.state is HandoffState.ACTIVE and bool(self._ready[plan])

    def take(self, plan: StreamPlan, now: float, max_layers: int = 1) -> Message | None:
        """The next message to post on this stream, with at most so many layers. It counts as in flight until `sent` is
        called for it."""
        if not self.has_ready(plan):
            return None
        self._start_one(now)
        ready, num_layers = self._ready[plan], 1
        index = ready.popleft()
        while num_layers < max_layers and ready and plan.follows(index + num_layers - 1, ready[0]):
            ready.popleft()
            num_layers += 1
        return plan.message(index, num_layers)

    def sent(self, message: Message, error: str | None, now: float) -> list[Action]:
        """The transport has finished with a posted message. `error` says why, if it was not sent."""
        self._end_one()
        if error is not None:
            actions = self.fail(f"a message could not be sent: {error}", now)
            return actions or self._settle(now)
        self._num_done += message.num_layers
        self._progress(now)
        return self._settle(now)


class ReceiveHandoff(_Handoff):
    """The end of one destination rank. `plans` has a plan for each source rank that sends to this rank."""

    def __init__(self, plans: Sequence[StreamPlan], now: float, lease_s: float, grace_s: float = GRACE_S) -> None:
        super().__init__(plans, now, lease_s, grace_s)
        self._plans_by_source = {plan.stream.source_rank: plan for plan in plans}
        self._seen = {plan: bytearray(plan.num_messages) for plan in plans}

    def arrived(self, now: float) -> None:
        """A message has arrived and waits for its turn, which shows that the sender is alive."""
        self._progress(now)

    def accept(self, source_rank: int, index: int, num_bytes: int, now: float) -> list[Action]:
        """There is room for a message that has arrived. Unless a `Land` is returned, the message is unwanted."""
        if self.state is not HandoffState.ACTIVE:
            return []
        plan = self._plans_by_source.get(source_rank)
        if plan is None:
            return self.fail(f"rank {source_rank} of the source has nothing to send here", now)
        try:
            message = plan.message_of(index, num_bytes)
        except TicketError as error:
            return self.fail(f"rank {source_rank} of the source sent {error}", now)
        seen, numbers = self._seen[plan], slice(index, index + message.num_layers)
        if any(seen[numbers]):
            return self.fail(f"message {index} of source rank {source_rank} came twice", now)
        seen[numbers] = bytes([1]) * message.num_layers
        self._start_one(now)
        return [Land(plan, message)]

    def received(
        self, plan: StreamPlan, message: Message, error: str | None, is_whole: bool, now: float
    ) -> list[Action]:
        """Nothing touches the message's pages any more. `is_whole`: it is in place, and its checksum was right."""
        self._end_one()
        reason = None
        if error is not None:
            reason = f"message {message.index} broke off: {error}"
        elif not is_whole:
            reason = f"message {message.index} of source rank {plan.stream.source_rank} has a wrong checksum"
        if reason is not None:
            actions = self.fail(reason, now)
            return actions or self._settle(now)
        if self.state is HandoffState.ACTIVE:
            self._num_done += message.num_layers
            self._progress(now)
        return self._settle(now)
