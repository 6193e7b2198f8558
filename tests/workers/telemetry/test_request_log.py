"""Log lines of requests: all stages at level debug, only failures else, always with the request id."""

from __future__ import annotations

import logging

import pytest

from slipstream.router.process.log_level import VARIABLE, log_level
from slipstream.router.protocol.messages import (
    Cancel,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    SamplingParams,
    Start,
    StepOutput,
    TokenChunk,
)
from slipstream.workers.telemetry.request_log import RequestLog

REQUEST = EngineRequest("r-1", 2, b"\0" * 40, b"\0" * 8, SamplingParams(max_tokens=4))
SAID = [
    StepOutput((TokenChunk("r-1", 2, 0, (5,)), TokenChunk("r-2", 0, 7, (5,)))),
    HandedOff("r-1", 2, 1024, 0.5),
    StepOutput((TokenChunk("r-1", 2, 3, (5,), finish_reason="length"),)),
    Failed("r-3", 0, "no pages", True),
]


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    with caplog.at_level(level, "slipstream.workers.telemetry.request_log"):
        log = RequestLog()
        for message in (Generate(1, REQUEST), Start("r-1", 2, (5,)), Cancel("r-9", 0)):
            log.heard(message)
        log.said(SAID)
    return [record.getMessage() for record in caplog.records]


def test_at_debug_every_stage_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, logging.DEBUG) == [
        "request r-1 attempt 2 prefill: 12 tokens here",
        "request r-1 attempt 2 first_token: decoding may begin",
        "request r-9 attempt 0 cancelled",
        "request r-1 attempt 2 first_token",
        "request r-1 attempt 2 transfer: 1024 bytes in 500.00 ms",
        "request r-1 attempt 2 finished: length",
        "request r-3 attempt 0 failed: no pages",
    ]


def test_else_only_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, logging.INFO) == ["request r-3 attempt 0 failed: no pages"]


def test_the_level_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert log_level() == logging.INFO
    monkeypatch.setenv(VARIABLE, "Debug")
    assert log_level() == logging.DEBUG
    monkeypatch.setenv(VARIABLE, "loud")
    with pytest.raises(ValueError, match=VARIABLE):
        log_level()
