"""Tokenises long prompts section by section, and remembers the sections.

    <|user|> ... <|end|>  |  <|assistant|> ... <|end|>  |  <|user|> ... <|end|>  |  <|assistant|>
           known                        known                       new                 new

A tokenizer first looks for its added tokens in a text, and then normalises, splits and merges what lies between them,
each part by itself. So where a prompt is cut right before an added token, the ids of the whole are those of the parts.
A conversation that has grown, or was changed in the middle, then costs what is new in it, whatever its template does.

A long section is cut into pieces, where the tokenizer is known to begin a word at every single space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from sys import getsizeof
from typing import Any

from slipstream.router.text.memory.prompt_memory import PromptMemory

LEAST_CHARS = 512  # of a section, where the prompt goes on: shorter ones are not worth an entry each
PIECE_CHARS = 4096  # about, of a long section
WORDS_MEET = re.compile(r"[A-Za-z](?= [A-Za-z])")
ENDS_WITH_SPACE = re.compile(r"[A-Za-z] ")


class Sections:
    """Where the prompts of one tokenizer may be cut. `spec` is its tokenizer.json; `cuts_at_spaces` says that a single
    space between ASCII letters always begins a word of it (`WordCache`)."""

    def __init__(self, memory: PromptMemory, spec: dict[str, Any], cuts_at_spaces: bool) -> None:
        self._memory = memory
        added = [token for token in spec.get("added_tokens", []) if token["content"]]
        exact = [token for token in added if not token["normalized"]]
        # With `single_word`, whether a token is found depends on its neighbours.
        are_found = not any(token["single_word"] for token in added)
        self._cuts = frozenset(token["content"] for token in exact if are_found and is_cut(token))
        # All of them, because a longer one that begins with a cut is another token.
        contents = sorted((token["content"] for token in exact), key=len, reverse=True)
        self._exact = re.compile("|".join(map(re.escape, contents)) or r"(?!)")
        self._longest = max(map(len, contents), default=0)
        self._all_cut = len(self._cuts) == len(contents)
        # A token that has the space itself would be cut in two.
        self._cuts_words = cuts_at_spaces and not any(ENDS_WITH_SPACE.search(token["content"]) for token in added)
        # Merges that are left out by chance differ from one time to the next.
        is_random = bool((spec.get("model") or {}).get("dropout"))
        self.may_be_cut = not is_random and (bool(self._cuts) or self._cuts_words)

    def of(self, text: str) -> list[str]:
        """The sections, which make up the text. They depend on the text before their end only."""
        sections: list[str] = []
        begin = 0
        is_cut = self._cuts.__contains__
        for match in self._exact.finditer(text):
            at = match.start()
            if at - begin >= LEAST_CHARS and (self._all_cut or is_cut(match[0])):
                self._append(sections, text[begin:at])
                begin = at
        self._append(sections, text[begin:])
        return sections

    def last_start(self, text: str, end: int) -> int:
        """Where the last section of `text[:end]` begins whose beginning does not depend on what follows `end`."""
        begin = 0
        for match in self._exact.finditer(text, 0, end):
            at = match.start()
            if at + self._longest > end:
                break
            if at - begin >= LEAST_CHARS and (self._all_cut or match[0] in self._cuts):
                begin = at
        return begin

    def _append(self, sections: list[str], section: str) -> None:
        if len(section) <= 2 * PIECE_CHARS or not self._cuts_words:
            sections.append(section)
            return
        begin = 0
        while (match := WORDS_MEET.search(section, begin + PIECE_CHARS)) is not None:
            sections.append(section[begin : match.end()])
            begin = match.end()
        sections.append(section[begin:])

    def known(self, owner: Hashable, sections: Sequence[str]) -> list[bytes | None]:
        """The packed ids of each section, None for those that have to be tokenised."""
        get = self._memory.get
        return [get((owner, section)) for section in sections]

    def learn(
        self,
        owner: Hashable,
        sections: Sequence[str],
        known: list[bytes | None],
        encode: Callable[[str], bytes | None],
    ) -> int:
        """Encodes the sections that are not known, as far as `encode` can, and remembers them. Returns how many
        characters are left."""
        num_left = 0
        for at, packed_ids in enumerate(known):
            if packed_ids is None:
                section = sections[at]
                packed_ids = known[at] = encode(section)
                if packed_ids is None:
                    num_left += len(section)
                else:
                    self._memory.put((owner, section), packed_ids, getsizeof(section) + len(packed_ids))
        return num_left


def is_cut(token: dict[str, Any]) -> bool:
    """Whether what lies before such a token does not depend on it: it takes no spaces from there."""
    return not (token["lstrip"] or token["content"][0].isspace())
