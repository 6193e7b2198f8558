"""The settings of the logging extension: which messages of this server are written."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slipstream.router.api.kserve.json_fields import as_bool, as_text, as_uint
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import LogSettings

LOG_NAME = "slipstream"  # of the logger whose level follows the settings
FORMATS = ("default", "ISO8601")


@dataclass(frozen=True, slots=True)
class ActiveLogging:
    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"

    @property
    def level(self) -> int:
        """The lowest level of Python's logging that is written."""
        if self.verbose_level:
            return logging.DEBUG
        if self.info:
            return logging.INFO
        if self.warning:
            return logging.WARNING
        return logging.ERROR if self.error else logging.CRITICAL


class LogControl:
    """The log settings of the server, as clients have changed them."""

    def __init__(self, start: ActiveLogging | None = None) -> None:
        self._start = self.active = start or ActiveLogging()

    @classmethod
    def of_verbosity(cls, level: int) -> LogControl:
        return cls(ActiveLogging(verbose_level=level))

    def shown(self) -> LogSettings:
        active = self.active
        return {
            "log_file": "",
            "log_info": active.info,
            "log_warning": active.warning,
            "log_error": active.error,
            "log_verbose_level": active.verbose_level,
            "log_format": active.format,
        }

    def changes(self) -> LogSettings:
        """What `update` makes of the settings of the start what holds now; log files cannot be changed."""
        if self.active == self._start:
            return {}
        return {name: value for name, value in self.shown().items() if name != "log_file"}

    def update(self, given: Mapping[str, object]) -> None:
        """Changes what `given` names with a value other than None; other names are ignored. Raises InferError and
        changes nothing."""
        active = self.active
        for name, value in given.items():
            if value is None:
                continue
            if name == "log_file":
                message = "log file location can not be updated through network protocol"
                raise InferError(message, InferErrorCode.UNSUPPORTED)
            if name == "log_info":
                active = replace(active, info=as_bool(value))
            elif name == "log_warning":
                active = replace(active, warning=as_bool(value))
            elif name == "log_error":
                active = replace(active, error=as_bool(value))
            elif name == "log_verbose_level":
                active = replace(active, verbose_level=as_uint(value))
            elif name == "log_format":
                active = replace(active, format=_format(value))
        self.active = active
        logging.getLogger(LOG_NAME).setLevel(active.level)


def _format(value: object) -> str:
    text = as_text(value)
    if text not in FORMATS:
        raise InferError(f"invalid argument for --log_format, got: {text}", InferErrorCode.UNAVAILABLE)
    return text
