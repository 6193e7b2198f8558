"""One message of a conversation with tools, before it has the form that a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call of a tool. `arguments` is what the model wrote: JSON as a rule."""

    id: str
    name: str
    arguments: str

    def as_object(self) -> dict[str, Any] | None:
        """The arguments, None if they are no JSON object, or escape half a character, which is no text. No arguments at
        all are an empty one."""
        try:
            value = json.loads(self.arguments or "{}")
            if "\\u" in self.arguments:
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):  # a UnicodeEncodeError is one
            return None
        return value if isinstance(value, dict) else None


class Turn(NamedTuple):
    """`content` is a text or the texts of parts, None: nothing. A result of the role `tool` names its call, and the
    tool that was called."""

    role: str
    content: str | Sequence[str] | None
    name: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "\n".join(self.content or ())
