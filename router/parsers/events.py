"""What the parser makes of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """`call_id` is what the model wrote, "" if its format has no ids. Calls are numbered from 0."""

    index: int
    name: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A fragment of the JSON of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    index: int


OutputEvent: TypeAlias = ContentDelta | ReasoningDelta | CallBegin | ArgumentsDelta | CallEnd
