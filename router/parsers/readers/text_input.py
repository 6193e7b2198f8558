"""The text that has come and is not read yet."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]  # it yields where it waits for text

WHITE = " \t\r\n"
MAX_HEAD = 16_384  # characters from a call's marker to its name, which are held back


class EndOfTextError(Exception):
    """The output has ended where a reader needs more of it."""


class MismatchError(Exception):
    """The text is not what the format says."""


class TextInput:
    """`text[at:]` is to be read. What was read is forgotten with the next piece, except from a mark on.

    What a reader decides must not depend on how far the text has come: it looks only at characters that are there for
    sure, and waits for those that may still change its mind. That is why all cuts of a text give the same events.
    """

    __slots__ = ("_mark", "at", "is_final", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self._mark: int | None = None
        self.is_final = False

    def add(self, text: str) -> None:
        start = self.at if self._mark is None else self._mark
        self.text = self.text[start:] + text
        self.at -= start
        if self._mark is not None:
            self._mark = 0

    def end(self) -> None:
        self.is_final = True

    def mark(self) -> None:
        """Begin to hold back what is read."""
        self._mark = self.at

    def release(self) -> str:
        """What was read since the mark, which is taken away; empty if there is none."""
        held = "" if self._mark is None else self.text[self._mark : self.at]
        self._mark = None
        return held

    def release_all(self) -> str:
        """What was read since the mark, and all behind it; empty if there is none."""
        if self._mark is None:
            return ""
        self.at = len(self.text)
        return self.release()

    def move_to(self, at: int) -> None:
        """Take the text before `at` as read. Raises MismatchError if too much is held back then."""
        if self._mark is not None and at - self._mark > MAX_HEAD:
            self.at = self._mark + MAX_HEAD
            raise MismatchError
        self.at = at

    def wait(self) -> Reading[None]:
        """Wait for another piece. Raises EndOfTextError."""
        if self.is_final:
            raise EndOfTextError
        yield

    def peek(self) -> Reading[str]:
        """The next character."""
        while self.at == len(self.text):
            yield from self.wait()
        return self.text[self.at]

    def skip_white(self) -> Reading[str]:
        """Read white space. Returns the character behind it."""
        while True:
            at, end = self.at, len(self.text)
            while at < end and self.text[at] in WHITE:
                at += 1
            self.move_to(at)
            if at < end:
                return self.text[at]
            yield from self.wait()

    def sees(self, options: Sequence[str]) -> Reading[str | None]:
        """The longest of `options` that stands here, if any; it is not read."""
        while True:
            num_left = len(self.text) - self.at
            found: str | None = None
            may_come = False
            for option in options:
                if self.text.startswith(option, self.at):
                    if found is None or len(option) > len(found):
                        found = option
                elif len(option) > num_left and option.startswith(self.text[self.at :]):
                    may_come = True
            if not may_come or self.is_final:
                return found
            yield from self.wait()

    def accept(self, options: Sequence[str]) -> Reading[str | None]:
        """Read the longest of `options` that stands here, if any."""
        found = yield from self.sees(options)
        if found is not None:
            self.move_to(self.at + len(found))
        return found

    def drop_unfinished(self, options: Sequence[str]) -> None:
        """Drop the beginning of one of `options` at the end of the text."""
        rest = self.text[self.at :]
        if self.is_final and any(option.startswith(rest) for option in options):
            self.at = len(self.text)

    def expect(self, *options: str) -> Reading[str]:
        """Read one of `options`. Raises MismatchError."""
        found = yield from self.accept(options)
        if found is None:
            raise MismatchError
        return found
