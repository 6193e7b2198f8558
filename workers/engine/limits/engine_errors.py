"""The error with which the engine refuses settings."""

from __future__ import annotations


class EngineConfigError(ValueError):
    """The engine cannot be built as configured. The message names the key and its value."""
