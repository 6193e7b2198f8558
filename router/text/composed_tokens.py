"""Finds control tokens that a chat template would make out of pieces of its messages.

A text may hold a piece of a control token that is harmless until the template cuts something out of the text, joins it
with another, or writes it in lower case. So where texts have such pieces, the template renders them once more with the
pieces broken up; control tokens that only the first rendering has were not the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BREAK = "\ufdef"  # a noncharacter, in no control token; the rendering that has it is only looked at

NAMES = frozenset({"name", "id", "tool_call_id"})  # of which templates write names of roles, or parts of tokens

Message = dict[str, Any]


class ComposedTokens:
    """`texts` are the control tokens. Their pieces are found by the characters with which they begin and end, apart
    from letters, digits and spaces: `<` and `>`; or `&`, of which the filter `striptags` makes them."""

    def __init__(self, texts: Sequence[str], chat_template: str) -> None:
        self.edges = {edge for text in texts if text for edge in (text[0], text[-1]) if is_edge(edge)}
        self._characters = sorted(self.edges | {"&"} if "striptags" in chat_template else self.edges)
        whole = "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
        self._whole = re.compile(f"({whole})")
        self._folded = "\0".join(texts).casefold()

    def are_in(self, text: str) -> bool:
        """Whether a text may have pieces of control tokens."""
        return any(character in text for character in self._characters)  # faster than a regular expression

    def has_telling_name(self, messages: Sequence[Message]) -> bool:
        """Whether the name of a message, a tool or a call, or an id, is the middle of a control token, such as
        `system`."""
        for message in messages:
            for key, value in message.items():
                if key in NAMES:
                    if self._is_middle(value):
                        return True
                elif type(value) is list and self._has_telling_name(value):
                    return True
        return False

    def _has_telling_name(self, value: Any) -> bool:
        if isinstance(value, Mapping):
            return any(
                (key in NAMES and self._is_middle(item)) or self._has_telling_name(item) for key, item in value.items()
            )
        return isinstance(value, list) and any(map(self._has_telling_name, value))

    def broken(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the pieces of control tokens broken up. Whole ones are left, which the caller allows."""
        return [{key: self._broken_field(key, value) for key, value in message.items()} for message in messages]

    def _broken_field(self, key: str, value: Any) -> Any:
        if key in NAMES and self._is_middle(value):
            return BREAK.join(("", *value, ""))
        return self._broken(value)

    def _is_middle(self, name: Any) -> bool:
        return isinstance(name, str) and bool(name.strip()) and name.strip().casefold() in self._folded

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            found = self._whole.search(value)
            if found is None:  # nearly always
                for character in self._characters:
                    value = value.replace(character, f"{BREAK}{character}{BREAK}")
                return value
            pieces = self._whole.split(value)  # every second one is a control token
            for character in self._characters:
                pieces[::2] = [piece.replace(character, f"{BREAK}{character}{BREAK}") for piece in pieces[::2]]
            return "".join(pieces)
        if isinstance(value, list):
            return [self._broken(item) for item in value]
        if isinstance(value, Mapping):
            return {self._broken(key): self._broken_field(key, item) for key, item in value.items()}
        return value


def is_edge(character: str) -> bool:
    return not (character.isalnum() or character.isspace())
