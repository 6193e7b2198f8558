"""Log lines that programs read, and that clients cannot forge."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime

import pytest

from slipstream.router.http.http_error import HttpError
from slipstream.router.observability.refusal_log import BURST_LINES, RefusalLog
from slipstream.router.process.log_format import (
    MAX_MESSAGE_CHARS,
    VARIABLE,
    JsonFormatter,
    TextFormatter,
    formatter,
    log_format,
)

HOSTILE = "first\nFORGED 12:00 ERROR second\r\x1b[31m\x00 \u2028 \ud800"


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("slipstream.x", logging.INFO, "x.py", 1, message, (), None)
    made.__dict__.update(extra)
    return made


def test_a_json_line_has_time_level_process_and_the_request() -> None:
    line = json.loads(
        JsonFormatter("decode-0").format(record("request r-1 attempt 2 failed: gone", trace_id="ab" * 16))
    )
    assert datetime.fromisoformat(line["ts"]).tzinfo is not None
    assert line["ts"].endswith("Z")
    assert (line["level"], line["logger"], line["process"]) == ("info", "slipstream.x", "decode-0")
    assert (line["request_id"], line["attempt"], line["trace_id"]) == ("r-1", 2, "ab" * 16)


def test_hostile_text_stays_within_one_json_line() -> None:
    text = JsonFormatter().format(record(HOSTILE, model="m" * 100_000))
    assert "\n" not in text
    assert "\r" not in text
    assert len(json.loads(text)["model"]) < 1000


def test_hostile_text_cannot_begin_a_line_of_text() -> None:
    text = TextFormatter("%(levelname)s %(message)s").format(record(HOSTILE))
    assert [line for line in text.split("\n") if not line.startswith(("INFO ", "    "))] == []
    assert not set("\r\x1b\x00\u2028") & set(text)


def test_a_huge_message_is_cut() -> None:
    assert len(json.loads(JsonFormatter().format(record("x" * 1_000_000)))["message"]) < MAX_MESSAGE_CHARS + 100


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        made = record("it failed")
        made.exc_info = sys.exc_info()
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: broken" in json.loads(text)["exception"]


def test_a_line_whose_arguments_do_not_fit_is_still_a_line() -> None:
    made = record("%d requests")
    made.args = ("many",)
    assert "%d requests" in json.loads(JsonFormatter().format(made))["message"]


def test_the_variable_chooses_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(formatter(), TextFormatter)
    monkeypatch.setenv(VARIABLE, "json")
    assert isinstance(formatter(), JsonFormatter)
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(ValueError, match="SLIPSTREAM_LOG_FORMAT must be one of text, json, got 'xml'"):
        log_format()


def test_a_flood_of_refusals_gives_few_lines_that_say_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [100.0]
    refusals = RefusalLog(lambda: now_s[0])
    error = HttpError(429, "Too many requests.", code="rate_limited")
    with caplog.at_level(logging.INFO):
        for number in range(10_000):
            refusals.refused(error, f"r-{number}", "m", "acme", "")
        assert len(caplog.records) == BURST_LINES
        now_s[0] += 1.0
        refusals.refused(error, "last", "m", "acme", "")
    said = caplog.records[-1]
    assert "9950 others before it were not logged" in said.getMessage()
    assert (said.request_id, said.model, said.tenant, said.status, said.reason) == (  # type: ignore[attr-defined]
        *("last", "m", "acme"),
        *(429, "rate_limited"),
    )
