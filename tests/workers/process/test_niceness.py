"""How far workers stand back, by role, device and settings."""

from __future__ import annotations

import os
from typing import Any

import pytest

from slipstream.workers.config.worker_config import EngineConfig, WorkerConfig
from slipstream.workers.process.niceness import DECODE_NICENESS, niceness


def config(ranks_on_host: int = 2, **engine: Any) -> WorkerConfig:
    return WorkerConfig(
        name="worker",
        role="decode",
        model="model",
        model_dir="model",
        router_host="127.0.0.1",
        router_port=1,
        ranks_on_host=ranks_on_host,
        engine=EngineConfig(**engine),
    )


def test_only_decoding_on_cpu_stands_back_by_itself() -> None:
    assert niceness(config(), "decode", "cpu") == DECODE_NICENESS
    assert niceness(config(), "prefill", "cpu") == 0
    assert niceness(config(), "decode", "cuda") == 0


def test_who_has_cores_of_its_own_need_not_stand_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    threads_and_ranks = (1, 6), (3, 2), (1, 7), (4, 2), (6, 1), (7, 1)
    found = [niceness(config(ranks, num_threads=threads), "decode", "cpu") for threads, ranks in threads_and_ranks]
    assert found == [0, 0, DECODE_NICENESS, DECODE_NICENESS, 0, DECODE_NICENESS]


def test_what_is_asked_for_holds_for_any_role() -> None:
    asked = config(niceness=3)
    assert niceness(asked, "prefill", "cpu") == niceness(asked, "decode", "cuda") == 3
    assert niceness(config(niceness=0), "decode", "cpu") == 0


@pytest.mark.parametrize("value", [-1, 20])
def test_values_that_nice_does_not_know_are_refused_by_name(value: int) -> None:
    with pytest.raises(ValueError, match="niceness must be auto or 0 to 19"):
        EngineConfig(niceness=value)
