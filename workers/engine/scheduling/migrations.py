"""Sequences that move to another worker while they decode: both ends of a move, as seen by the engine.

    source        RUNNING ----- send_pages: full pages, while it goes on ---> RUNNING --freeze--> FROZEN --release-->
                                                                                ^                   |
                                                                                +------resume-------+
    destination   RESERVED --copied--> RESERVED --extend ... land, start--> RUNNING

A sequence of T tokens has the KV of T - 1, because the last one is computed in the step that samples the next. That is
so at both ends, and the destination continues with exactly the step that the source would have taken.
"""

from __future__ import annotations

from array import array

from slipstream.kv_transfer.api.ticket import HandoffTicket
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.scheduling.scheduler import Scheduler
from slipstream.workers.engine.scheduling.sequence import Sequence, SequenceState
from slipstream.workers.engine.scheduling.wanted_pages import WantedPages
from slipstream.workers.interface.engine import AttemptKey, EngineRequestError, Reservation


class NativeMigrations:
    """`EngineMigrations` of the native engine, for its one thread."""

    def __init__(self, limits: EngineLimits, scheduler: Scheduler) -> None:
        self._limits = limits
        self._scheduler = scheduler

    def adopt(self, sequence: Sequence, num_room_tokens: int) -> Reservation | None:
        """Reserve pages for a new sequence; None if there are not enough now."""
        sequence.is_adopted = True
        if not self._scheduler.reserve(sequence, max(num_room_tokens, 1)):
            return None
        return self._wanted(sequence, num_room_tokens)

    def extend(self, key: AttemptKey, token_ids: tuple[int, ...], num_room_tokens: int) -> Reservation | None:
        sequence = self._scheduler.get(key)
        if sequence is None or not sequence.is_adopted or sequence.state is not SequenceState.RESERVED:
            raise EngineRequestError("request_id", f"{key} is not being copied here")
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._limits.vocab_size:
            raise EngineRequestError("token_ids", f"{key} cannot go on with {token_ids}")
        if sequence.num_tokens + len(token_ids) >= sequence.max_tokens:
            raise EngineRequestError("token_ids", f"{key} has nothing left to generate")
        if not self._scheduler.extend(sequence, sequence.num_tokens + len(token_ids) + max(num_room_tokens, 1)):
            return None
        for token_id in token_ids:
            sequence.append(token_id)
        self._scheduler.skip_to(sequence, sequence.num_tokens - 1)
        return self._wanted(sequence, num_room_tokens)

    def copied(self, key: AttemptKey) -> bool:
        """Returns False if there is no such reservation (any more)."""
        sequence = self._scheduler.get(key)
        if sequence is None or sequence.state is not SequenceState.RESERVED:
            return False
        self._scheduler.copied(sequence)
        return True

    def check_start(self, sequence: Sequence, token_ids: tuple[int, ...]) -> None:
        """Raises EngineRequestError if an adopted sequence cannot have the KV before the last of these tokens."""
        num_held = len(sequence.pages) * self._limits.page_tokens
        if sequence.num_tokens + len(token_ids) - 1 > num_held:
            raise EngineRequestError("token_ids", f"{sequence.key} has pages for {num_held} tokens")

    def _wanted(self, sequence: Sequence, num_room_tokens: int) -> Reservation:
        limits, num_tokens = self._limits, sequence.num_tokens
        first_block = sequence.num_computed // limits.page_tokens
        if num_room_tokens:
            wanted = WantedPages.of_rest(limits, first_block, num_tokens, len(sequence.pages))
        else:
            end = (num_tokens - 1) // limits.page_tokens
            wanted = WantedPages.of_full_blocks(limits, min(first_block, end), end)
            sequence.num_to_land = end * limits.page_tokens
        num_cached = sequence.num_cached or 0
        page_ids = tuple(wanted.ids(sequence.tables, sequence.state_pages))
        return Reservation(sequence.key, num_cached, first_block, page_ids, num_tokens if limits.has_windows else 0)

    def interrupt(self, key: AttemptKey) -> bool:
        return False  # it is only called between two steps

    def freeze(self, key: AttemptKey) -> int:
        sequence = self._decoding(key)
        self._scheduler.freeze(sequence)
        return sequence.num_output

    def resume(self, key: AttemptKey) -> bool:
        """Returns False if it is not frozen here."""
        sequence = self._scheduler.get(key)
        if sequence is None or sequence.state is not SequenceState.FROZEN:
            return False
        self._scheduler.resume(sequence)
        return True

    def check_ticket(self, key: AttemptKey, ticket: HandoffTicket, freeze: bool) -> None:
        sequence = self._decoding(key)
        wanted, page_tokens = WantedPages.of_ticket(self._limits, ticket, is_rest=freeze), self._limits.page_tokens
        if wanted is None or ticket.num_tokens > sequence.num_tokens:
            raise EngineRequestError("ticket", f"{ticket.num_pages} pages of {ticket.num_tokens} tokens of {key}")
        if freeze and self._limits.blocks_for(sequence.num_computed) > wanted.end:
            raise EngineRequestError(
                "ticket", f"ends before page {wanted.end}; {key} has {sequence.num_computed} tokens by now"
            )
        if not freeze and wanted.end > sequence.num_computed // page_tokens:
            raise EngineRequestError(
                "ticket", f"asks for {wanted.end} full pages; {key} has {sequence.num_computed} tokens"
            )

    def begin_send(self, key: AttemptKey, ticket: HandoffTicket) -> tuple[int, ...]:
        """If the ticket asks for pages that the sequence does not have yet, or has given back, others are sent in their
        place: nothing reads those."""
        sequence = self._scheduler.get(key)
        assert sequence is not None
        self._scheduler.begin_send(sequence)
        wanted = WantedPages.of_ticket(self._limits, ticket, is_rest=sequence.state is SequenceState.FROZEN)
        assert wanted is not None
        return tuple(
            wanted.ids(
                [
                    _padded(table, first, wanted.end)
                    for table, first in zip(sequence.tables, sequence.first_blocks, strict=True)
                ],
                sequence.state_pages,
            )
        )

    def end_send(self, key: AttemptKey) -> None:
        sequence = self._scheduler.get(key)
        assert sequence is not None
        self._scheduler.end_send(sequence)
        if sequence.state is SequenceState.DRAINING and not sequence.num_sends:
            self._scheduler.release(sequence)

    def _decoding(self, key: AttemptKey) -> Sequence:
        sequence = self._scheduler.get(key)
        if sequence is None or sequence.state is not SequenceState.RUNNING or sequence.num_uncomputed != 1:
            where = "unknown" if sequence is None else sequence.state.value
            raise EngineRequestError("request_id", f"{key} is {where} here and does not decode")
        return sequence


def _padded(table: array[int], first: int, end: int) -> array[int]:
    """A table of `end` blocks that has the last page wherever this one has none."""
    last = table[-1:]
    return last * first + table[first:end] + last * (end - len(table))
