"""One request of a workload: when it comes, how long it is, what it has in common with others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512  # of Mooncake's hash ids


class TraceError(Exception):
    """A line of a trace that cannot be read: file, line, column and reason in one sentence."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")
        self.path, self.line = path, line


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at_s` counts from the beginning of the workload. Lengths are tokens, at least 1; `output_length` is where the
    model stops by itself.

    `blocks` name the prompt's blocks of `BLOCK_TOKENS` tokens from its beginning, the last perhaps in part; equal
    where prompts begin alike. Empty: nothing is known to be shared with anybody.
    """

    at_s: float
    input_length: int
    output_length: int
    blocks: tuple[int, ...] = ()
    tenant: str = ""
    session: str = ""
