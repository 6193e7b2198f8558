"""The pages that sequences have yet to take."""

from __future__ import annotations

from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.scheduling.promised_pages import PromisedPages
from slipstream.workers.engine.scheduling.sequence import Sequence
from slipstream.workers.engine.scheduling.sequence_table import SequenceTable


class OutstandingPages:
    """Where `limits.reserves_output`, a queued sequence needs pages for its whole answer, and a running one is promised
    them; otherwise it needs those of the tokens that it has, and one more page whenever the last is full."""

    def __init__(self, limits: EngineLimits, table: SequenceTable, promised: PromisedPages) -> None:
        self._limits = limits
        self._table = table
        self._promised = promised

    def change_limits(self, limits: EngineLimits) -> None:
        self._limits = limits

    @property
    def of_queue(self) -> int:
        """Pages that the queued sequences are going to take when they are admitted."""
        if self._limits.reserves_output:
            return sum(map(self.to_run, self._table.waiting))
        return sum(self._limits.pages_for(sequence.num_tokens) for sequence in self._table.waiting)

    def to_run(self, sequence: Sequence) -> int:
        """Pages that a queued sequence waits for, those of its next token or of its whole answer included."""
        wants_all = self._limits.reserves_output
        return self._limits.pages_for(sequence.most_tokens if wants_all else sequence.num_tokens + 1)

    @property
    def growth_room(self) -> int:
        """Pages to leave for sequences that will need them: all that are promised, or else some for running ones that
        will soon need one, so that taking in another does not at once lead to a preemption. Those are at most 1/64 of
        the pool; none is left where nothing runs, so the first always fits."""
        if self._limits.reserves_output:
            return self._promised.num_pages
        return min(len(self._table.running) * len(self._limits.windows), 1 + self._limits.num_pages // 64)
