"""The server's log, for models."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import Any

from slipstream.workers.backends.python.model_api.server_link import PROCESS
from slipstream.workers.backends.python.model_api.tensors.text import text_of


class LogLevel(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


NAMES = {LogLevel.INFO: "info", LogLevel.WARNING: "warn", LogLevel.ERROR: "error", LogLevel.VERBOSE: "verbose"}


class Logger:
    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: int = LogLevel.INFO) -> None:
        write(NAMES[LogLevel(level)], message)

    @staticmethod
    def log_info(message: str) -> None:
        write("info", message)

    @staticmethod
    def log_warn(message: str) -> None:
        write("warn", message)

    @staticmethod
    def log_error(message: str) -> None:
        write("error", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        write("verbose", message)


def write(level: str, message: Any) -> None:
    text = text_of(message, "Logger: message")
    caller = sys._getframe(2)
    PROCESS.link.log(level, text, caller.f_code.co_filename, caller.f_lineno)
