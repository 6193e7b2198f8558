"""Text of one kind on its way out. White space is held back until it is known whether it belongs to the text."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.router.parsers.readers.json_values import SURROGATES
from slipstream.router.parsers.readers.text_input import WHITE

MAX_WHITE = 256  # characters: longer runs belong to the text


class TextWriter:
    """White space before a marker belongs to the format, and so does white space behind it: it is dropped. Where a
    marker stood within the text, one line break stands."""

    __slots__ = ("_drops_white", "_emit", "_held", "_run", "is_empty")

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._held = ""
        self._run = 0  # characters of the white space that is being written
        self._drops_white = False
        self.is_empty = True  # nothing but white space was written

    def write(self, text: str) -> None:
        """Markers in the text that stand in no place of theirs are not shown."""
        text = SURROGATES.sub("", text)
        if self._drops_white:
            text = text.lstrip(WHITE)
            if not text:
                return
            if not self.is_empty:
                self._emit("\n")
            self._drops_white = False
        body = text.rstrip(WHITE)
        if body:
            self._emit(self._held + body)
            self._held = ""
            self._run = 0
            self.is_empty = False
        white = text[len(body) :]
        self._held += white
        self._run += len(white)
        if self._run > MAX_WHITE:
            self._emit(self._held)
            self._held = ""

    def at_marker(self) -> None:
        """A marker stands here."""
        self._held = ""
        self._run = 0
        self._drops_white = True

    def finish(self) -> None:
        """The output ends."""
        self._emit(self._held)
        self._held = ""
