"""The markers of a format as the tokens of a vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slipstream.router.parsers.description.output_format import OutputFormat


@dataclass(frozen=True, eq=False)
class MarkerTokens:
    """The added tokens of a vocabulary by their texts: `special` ones, which the text does not show, and `plain` ones,
    which are text as any other, but one token. Made once for a model; equal only to itself."""

    special: Mapping[str, int] = field(default_factory=dict)
    plain: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(added_tokens: Iterable[Mapping[str, Any]]) -> MarkerTokens:
        """`added_tokens` are those of tokenizer.json."""
        added = list(added_tokens)
        return MarkerTokens(
            {token["content"]: token["id"] for token in added if token.get("special")},
            {token["content"]: token["id"] for token in added if not token.get("special")},
        )

    def shown_ids(self, form: OutputFormat) -> tuple[int, ...]:
        """The special tokens that the format names: all others leave no trace in the text."""
        return tuple(sorted(self.special[text] for text in form.marker_characters(self.special)))

    def parts(self, text: str) -> tuple[str | int, ...]:
        """A text as special tokens, by their ids, and the texts between them."""
        return tuple(self.special.get(part, part) for part in self._special_text.split(text) if part)

    def lark(self, text: str) -> str:
        """A text as an expression of Lark: added tokens by their ids."""
        written = []
        for part in filter(None, self._added_text.split(text)):
            token_id = self.special.get(part, self._plain_markers.get(part))
            written.append(quoted(part) if token_id is None else f"<[{token_id}]>")
        return " ".join(written)

    def is_token(self, text: str) -> bool:
        """Whether the text is an added token, so that no other text of a grammar contains it."""
        return text in self.special or text in self._plain_markers

    @cached_property
    def _plain_markers(self) -> dict[str, int]:
        """llguidance takes each added token of the form `<...>` for a special one, and no text can contain it. Those of
        other forms are text."""
        return {text: token_id for text, token_id in self.plain.items() if text[:1] == "<" and text[-1:] == ">"}

    @cached_property
    def _special_text(self) -> re.Pattern[str]:
        return _any_of(self.special)

    @cached_property
    def _added_text(self) -> re.Pattern[str]:
        return _any_of([*self.special, *self._plain_markers])


def quoted(text: str) -> str:
    """A text as a literal of Lark, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")" if ordered else "((?!))")
