"""When a worker reports the pages that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.protocol.messages import PagesHeld
from slipstream.workers.interface.engine import PageUse
from slipstream.workers.telemetry.page_reports import INTERVAL_S, PageReports


@dataclass
class Engine:
    use: PageUse

    def page_use(self) -> PageUse:
        return self.use


def test_a_worker_without_a_limit_says_nothing() -> None:
    reports = PageReports(Engine(PageUse(10, 0, 0, 0)))
    assert reports.due(0.0) is None
    assert reports.next_due_s() is None


def test_what_a_host_waits_for_is_said_at_once_and_the_rest_now_and_then() -> None:
    engine = Engine(PageUse(10, 1, 0, 0))
    reports = PageReports(engine)
    reports.limited(1)
    assert reports.due(0.0) == PagesHeld(1, 10, 1, 0, 0)
    assert reports.due(0.0) is None
    engine.use = PageUse(10, 2, 0, 0)
    assert reports.due(INTERVAL_S / 2) is None
    assert reports.next_due_s() == INTERVAL_S
    assert reports.due(INTERVAL_S) == PagesHeld(1, 10, 2, 0, 0)
    assert reports.next_due_s() is None
    engine.use = PageUse(9, 2, 0, 0)
    assert reports.due(INTERVAL_S) == PagesHeld(1, 9, 2, 0, 0)
    engine.use = PageUse(9, 2, 0, 3)
    assert reports.due(INTERVAL_S) == PagesHeld(1, 9, 2, 0, 3)
    reports.limited(2)
    assert reports.due(INTERVAL_S) == PagesHeld(2, 9, 2, 0, 3)


def test_a_new_connection_hears_nothing_before_its_first_limit() -> None:
    reports = PageReports(Engine(PageUse(10, 0, 0, 0)))
    reports.limited(4)
    assert reports.due(0.0) is not None
    reports.start_over()
    assert reports.due(1.0) is None
    reports.limited(1)
    assert reports.due(1.0) == PagesHeld(1, 10, 0, 0, 0)
