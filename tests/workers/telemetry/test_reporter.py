"""The stages of a worker's start, as they are reported."""

from __future__ import annotations

from slipstream.workers.telemetry.reporter import Reporter
from slipstream.workers.telemetry.worker_report import WorkerState

START: tuple[WorkerState, ...] = ("loading", "warming_up", "connecting", "ready")


def stages(reporter: Reporter) -> list[str]:
    return [stage for stage, _ in reporter.report.startup_s]


def test_a_swap_counts_from_the_drain_of_the_model_before() -> None:
    first = Reporter("decode-0", "decode")
    for state in START:
        first.show(state, "")
    assert stages(first) == ["loading", "warming_up", "connecting"]
    first.show("draining", "")
    first.show("stopped", "")
    second = Reporter("decode-0", "prefill", first.report.startup_s)
    assert (second.report.state, second.report.role, second.is_loading) == ("new", "prefill", True)
    second.show("freeing", "")
    assert second.is_loading
    for state in START:
        second.show(state, "")
    assert stages(second) == ["draining", "freeing", "loading", "warming_up", "connecting"]
    assert not second.is_loading
