"""Where the readers of a call put what they read."""

from __future__ import annotations

from typing import Any, Protocol


class CallSink(Protocol):
    def begin(self, name: str, call_id: str, has_arguments: bool = True) -> None:
        """The name is known. Raises MismatchError if this is no call for sure."""

    def write(self, fragment: str) -> None:
        """A fragment of the JSON of the arguments."""

    @property
    def parameters(self) -> Any:
        """The JSON schema of the function's parameters; None if it is unknown."""
