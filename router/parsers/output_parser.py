"""Takes a model's output apart, in pieces of any size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.parsers.description.output_format import BoundFormat
from slipstream.router.parsers.events import OutputEvent


class OutputParser:
    """Reads one output. The events of all pieces together do not depend on how the text was cut.

    `tools` gives the JSON schemas of the parameters by the functions' names: formats without types in their text take
    them from there. `max_calls`: what comes behind so many calls is not read.
    """

    def __init__(
        self,
        form: BoundFormat,
        *,
        tools: Mapping[str, Any] = {},
        begins_in_reasoning: bool = False,
        reads_calls: bool = True,
        max_calls: int | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def in_reasoning(self) -> bool:
        raise NotImplementedError

    @property
    def num_calls(self) -> int:
        """Complete calls so far."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Whether `max_calls` calls are complete."""
        raise NotImplementedError

    def feed(self, text: str) -> list[OutputEvent]:
        """What has become certain with `text`. Neighbouring deltas of one kind are one."""
        raise NotImplementedError

    def finish(self) -> list[OutputEvent]:
        """What was held back. A call that is still open is ended as it is."""
        raise NotImplementedError
