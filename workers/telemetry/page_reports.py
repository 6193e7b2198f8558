"""Reports to the router how many pages a worker with a limit holds, uses and wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slipstream.router.protocol.messages import PagesHeld
from slipstream.workers.interface.engine import PageUse

INTERVAL_S = 0.1  # between reports that nothing waits for


class PageUser(Protocol):
    """The part of an engine that is needed here."""

    def page_use(self) -> PageUse: ...


@dataclass(slots=True)
class PageReports:
    """Says nothing before the first limit of a connection. No clock: times are seconds of any monotonic one."""

    engine: PageUser
    _ack_seq: int = 0
    _last: PagesHeld | None = None
    _next_s: float = float("-inf")
    _is_stale: bool = False  # something has changed since `_last` that can wait

    def start_over(self) -> None:
        """A new connection has begun, on which the router has set no limit yet."""
        self._ack_seq = 0
        self._last = None
        self._is_stale = False

    def limited(self, seq: int) -> None:
        """The engine has the limit of the message with this number."""
        self._ack_seq = seq

    def due(self, now_s: float) -> PagesHeld | None:
        """The report to send now, if any. To be called after every turn of the loop."""
        if not self._ack_seq:
            return None
        use, last = self.engine.page_use(), self._last
        report = PagesHeld(self._ack_seq, use.num_held, use.num_used, use.num_cached, use.num_wanted)
        self._is_stale = False
        if report == last:
            return None
        is_urgent = (
            last is None
            or report.ack_seq != last.ack_seq
            or report.num_held < last.num_held
            or (report.num_wanted > 0 and not last.num_wanted)
        )
        if not is_urgent and now_s < self._next_s:
            self._is_stale = True
            return None
        self._last, self._next_s = report, now_s + INTERVAL_S
        return report

    def next_due_s(self) -> float | None:
        """When an idle loop should call `due` again; None: only after something has happened."""
        return self._next_s if self._is_stale else None
