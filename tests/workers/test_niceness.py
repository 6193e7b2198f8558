"""How far workers stand back, by role, device and settings."""

from __future__ import annotations

import os

import pytest

from slipstream.workers.config import EngineConfig
from slipstream.workers.niceness import DECODE_NICENESS, niceness


def test_only_decoding_on_cpu_stands_back_by_itself() -> None:
    auto = EngineConfig()
    assert niceness(auto, "decode", "cpu") > 0
    assert niceness(auto, "prefill", "cpu") == 0
    assert niceness(auto, "decode", "cuda") == 0


def test_who_leaves_cores_to_others_need_not_stand_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    found = [niceness(EngineConfig(num_threads=threads), "decode", "cpu") for threads in (1, 2, 3, 4)]
    assert found == [0, 0, DECODE_NICENESS, DECODE_NICENESS]


def test_what_is_asked_for_holds_for_any_role() -> None:
    asked = EngineConfig(niceness=3)
    assert niceness(asked, "prefill", "cpu") == niceness(asked, "decode", "cuda") == 3
    assert niceness(EngineConfig(niceness=0), "decode", "cpu") == 0


@pytest.mark.parametrize("value", [-1, 20])
def test_values_that_nice_does_not_know_are_refused_by_name(value: int) -> None:
    with pytest.raises(ValueError, match="niceness must be auto or 0 to 19"):
        EngineConfig(niceness=value)
