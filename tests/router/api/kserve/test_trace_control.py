"""Which requests are traced."""

from __future__ import annotations

import pytest

from slipstream.router.api.kserve.trace_control import TraceControl

SETTINGS = {"trace_file": "t.json", "trace_level": "TIMESTAMPS,TENSORS", "trace_rate": "3", "trace_count": "2"}


def test_a_server_starts_with_its_settings() -> None:
    traces = TraceControl.of_settings(SETTINGS)
    assert traces.shown() == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["3"],
        "trace_count": ["2"],
        "log_frequency": ["0"],
        "trace_file": ["t.json"],
        "trace_mode": ["triton"],
    }
    assert TraceControl.of_settings({}).shown()["trace_level"] == ["OFF"]
    with pytest.raises(ValueError, match="trace file name is not given"):
        TraceControl.of_settings({"trace_level": "TIMESTAMPS"})


def test_one_request_in_rate_is_traced_until_the_count_is_reached() -> None:
    traces = TraceControl.of_settings(SETTINGS)
    assert [traces.takes("m") for _ in range(12)] == [False, False, True, False, False, True] + 6 * [False]
    assert [traces.takes("other") for _ in range(3)] == [False, False, True]


def test_a_change_begins_to_count_anew_and_a_model_may_be_apart() -> None:
    traces = TraceControl.of_settings({**SETTINGS, "trace_rate": "1", "trace_count": "1"})
    assert [traces.takes("m"), traces.takes("m")] == [True, False]
    traces.update({"trace_level": ["OFF"]}, "m")
    assert [traces.takes("m"), traces.takes("n")] == [False, True]
    traces.update({"trace_level": None}, "m")
    assert traces.takes("m")
