"""The errors with which the engine refuses requests and settings."""

from __future__ import annotations


class EngineRequestError(ValueError):
    """The request itself is at fault: no worker with this model and these limits could run it. `field` names the
    part of the request."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class EngineConfigError(ValueError):
    """The engine cannot be built as configured. The message names the key and its value."""
