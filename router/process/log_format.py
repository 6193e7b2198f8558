"""The form of log lines: text, or one JSON object a line (`SLIPSTREAM_LOG_FORMAT=json`).

In either, what clients have sent can neither begin a line of its own nor make one of any length: control characters are
escaped, later lines of a text are indented, and what is too long is cut.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

from slipstream.router.process.log_level import log_level

VARIABLE = "SLIPSTREAM_LOG_FORMAT"
FORMATS = ("text", "json")
MAX_MESSAGE_CHARS = 8192
MAX_EXCEPTION_CHARS = 32768
MAX_FIELD_CHARS = 512
FIELDS = ("request_id", "model", "tenant", "trace_id", "status", "reason", "worker", "attempt")  # by `extra`
ABOUT_REQUEST = re.compile(r"request (\S+) attempt (\d+) ")  # how lines about requests begin, without `extra`
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
CONTROL |= {0x2028: "\\u2028", 0x2029: "\\u2029"}


def log_format() -> str:
    """The configured form. Raises ValueError if there is none of this name."""
    word = os.environ.get(VARIABLE) or "text"
    if word not in FORMATS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(FORMATS)}, got {word!r}")
    return word


def formatter(process: str = "", text: str = "%(asctime)s %(levelname)s %(message)s", times: str | None = None) -> Any:
    """The formatter of a process's handler, in the configured form. `text` and `times` are those of text lines."""
    return JsonFormatter(process) if log_format() == "json" else TextFormatter(text, times)


def log_to_stderr(process: str) -> None:
    """Sends the log lines of this program to stderr, in the configured form and from the configured level on. Raises
    ValueError for a form that there is not."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(process))
    logging.basicConfig(level=log_level(), handlers=[handler])
    logging.captureWarnings(log_format() == "json")


def bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more)"


class TextFormatter(logging.Formatter):
    """Lines of text."""

    def format(self, record: logging.LogRecord) -> str:
        text = bounded(super().format(record), MAX_MESSAGE_CHARS + MAX_EXCEPTION_CHARS).translate(CONTROL)
        return text.replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line. `process` says which process of the cluster it is."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception as error:  # a line whose arguments do not fit is still a line
            message = f"{record.msg} ({error})"
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": bounded(message, MAX_MESSAGE_CHARS),
        }
        if self.process:
            line["process"] = self.process
        line["pid"] = record.process
        about = ABOUT_REQUEST.match(message)
        if about is not None:
            line |= {"request_id": about[1][:MAX_FIELD_CHARS], "attempt": int(about[2][:9])}
        for name in FIELDS:
            value = record.__dict__.get(name)
            if value is not None and value != "":
                line[name] = value if isinstance(value, int) else bounded(str(value), MAX_FIELD_CHARS)
        if record.exc_info:
            line["exception"] = bounded(self.formatException(record.exc_info), MAX_EXCEPTION_CHARS)
        try:
            return orjson.dumps(line).decode()
        except (TypeError, ValueError):  # half of a surrogate pair
            sound = {key: _sound(value) if isinstance(value, str) else value for key, value in line.items()}
            return orjson.dumps(sound).decode()


def _sound(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
