"""A rule of a script: a regular expression of the prompt, and the text that answers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import regex

COUNT = "count"  # `\g<count>`: how many matches the prompt has
REFERENCE = re.compile(r"\\g<(\w+)>")

Cuts = Literal["tokens", "characters"]
Lookup = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Reply:
    """`pieces` are tokenised one by one, with `cuts` between tokens or characters."""

    pieces: tuple[str, ...]
    cuts: Cuts = "tokens"

    def references(self) -> Iterator[str]:
        """The groups that it uses, by name or number."""
        for piece in self.pieces:
            yield from REFERENCE.findall(piece)

    def filled(self, group: Lookup) -> Reply:
        """The reply with the text of each group in its place."""
        return Reply(tuple(REFERENCE.sub(lambda found: group(found[1]), piece) for piece in self.pieces), self.cuts)


class RuleMatch(NamedTuple):
    """The last match of a rule in a prompt. `end` is in characters."""

    end: int
    num_matches: int
    match: regex.Match[str]

    def group(self, name: str) -> str:
        if name == COUNT:
            return str(self.num_matches)
        return self.match[int(name) if name.isdecimal() else name] or ""


@dataclass(frozen=True, slots=True)
class ScriptRule:
    name: str
    pattern: regex.Pattern[str]
    reply: Reply

    def last_match(self, prompt: str, timeout_s: float) -> RuleMatch | None:
        """Raises TimeoutError if looking takes longer."""
        matches = list(self.pattern.finditer(prompt, timeout=timeout_s))
        return RuleMatch(matches[-1].end(), len(matches), matches[-1]) if matches else None
