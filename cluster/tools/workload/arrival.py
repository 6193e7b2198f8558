"""One request of a workload: when it arrives, how long it is, and what it shares with others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512  # of Mooncake's hash ids


class TraceError(Exception):
    """A line of a trace cannot be read. The text is one sentence with file, line, column and reason."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at_s` counts from the beginning of the workload. Lengths are tokens, at least 1; `output_length` is where the
    model stops by itself.

    `blocks` are ids of the prompt's blocks of `BLOCK_TOKENS` tokens, the last of which may be partial. Prompts that
    begin alike have equal ids. Empty: nothing is known to be shared with other requests. `model` is the name that it
    asks for; "" where the workload does not say.

    `tools` are those that an agent's answer calls, () for an answer without a call; None: the request is no agent's.
    `then` is the next request of the conversation; its `at_s` counts from the end of this one.
    """

    at_s: float
    input_length: int
    output_length: int
    blocks: tuple[int, ...] = ()
    tenant: str = ""
    session: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    then: Arrival | None = None
