"""The description of a model's output, read by the parser and by the builder of grammars.

transformers 5 ships a parser of its own (`parse_response` with a model's `response_template`). It cannot be used here:
its regular expressions make no grammar, it gives a call's name and arguments only when the call is complete, it reads
what it holds back again with each piece, and it raises an error on malformed calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slipstream.router.parsers.description.elements import BODIES, FIRST_CHARACTERS, Element, Literal, Space, with_texts

FIRST_MARKER = 0xD800  # a special token is shown as a lone surrogate, which UTF-8 text cannot contain
MAX_MARKERS = 0x800


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """A section of reasoning at the beginning of the output, from one of `opens` to one of `closes`; the first of each
    is what the model writes, the others are read as well.

    `is_assumed`: an output begins in reasoning without `opens`, unless the prompt ends behind one of `closes`.
    `anywhere`: a section may also follow content.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    is_assumed: bool = False
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class CallsPart:
    """`opening` CALL (`separator` CALL)* `closing`, where CALL is the sequence `call`. Formats that mark each call by
    itself have neither opening nor closing.

    `only_at_start`: the calls' first text is no marker (`{`, `[`), and counts only at the beginning of the content, and
    only if the name is one of the request's tools.
    """

    call: tuple[Element, ...]
    opening: tuple[Element, ...] = ()
    separator: tuple[Element, ...] = ()
    closing: tuple[Element, ...] = ()
    only_at_start: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts any of which begins calls; the first is what the model writes. Of a part that counts
        `only_at_start` these are only its optional markers, which count everywhere (`<|python_tag|>`)."""
        found: list[str] = []
        for element in (*self.opening, *self.call):
            if isinstance(element, Literal):
                if self.only_at_start and not element.optional:
                    break
                found += element.spellings
                if not element.optional:
                    break
            elif not isinstance(element, Space):
                break
        return tuple(found)

    @property
    def start(self) -> str | None:
        """The text that begins calls without a marker, `only_at_start`."""
        if self.only_at_start:
            for element in (*self.opening, *self.call):
                if isinstance(element, Literal) and not element.optional:
                    return element.text
                if isinstance(element, BODIES):
                    return FIRST_CHARACTERS[type(element)]
        return None

    @property
    def body(self) -> int:
        """The place in `call` of the element with the arguments."""
        return next(i for i, element in enumerate(self.call) if isinstance(element, BODIES))


@dataclass(frozen=True, slots=True)
class ChannelsPart:
    """Harmony (gpt-oss): messages `<|start|>assistant<|channel|>NAME<|message|>TEXT<|end|>`, with the recipient of a
    call, ` to=functions.NAME`, behind the role or behind the channel. The prompt ends with `<|start|>assistant`."""

    start: str = "<|start|>"
    channel: str = "<|channel|>"
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    end: str = "<|end|>"
    call: str = "<|call|>"
    over: str = "<|return|>"
    role: str = "assistant"
    reasoning_channel: str = "analysis"
    call_channel: str = "commentary"
    content_channel: str = "final"
    recipient: str = " to="
    recipient_prefix: str = "functions."

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.channel, self.constrain, self.message, self.end, self.call, self.over)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How a model writes reasoning and calls. `hidden` are texts around the content that do not belong to it (Granite's
    `<response>`). With `channels` the other parts are None."""

    name: str
    reasoning: ReasoningPart | None = None
    calls: CallsPart | None = None
    channels: ChannelsPart | None = None
    hidden: tuple[str, ...] = ()

    def texts(self) -> tuple[str, ...]:
        """All fixed texts, in which special tokens are looked for."""
        found: list[str] = []

        def note(text: str) -> str:
            found.append(text)
            return text

        self._with_texts(note)
        return tuple(found)

    def marker_characters(self, special_tokens: Iterable[str]) -> dict[str, str]:
        """The special tokens of a vocabulary that this format names, each with the character that stands for it in the
        text: what the detokenizer has to show."""
        texts = self.texts()
        named = sorted({token for token in special_tokens if token and any(token in text for text in texts)})
        return {token: chr(FIRST_MARKER + i) for i, token in enumerate(named[:MAX_MARKERS])}

    def bound(self, special: Mapping[str, str]) -> BoundFormat:
        """This format with the special tokens in its texts replaced by their characters."""
        if not special:
            return BoundFormat(self)
        tokens = re.compile("|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)))
        return BoundFormat(self._with_texts(lambda text: tokens.sub(lambda m: special[m[0]], text)), dict(special))

    def _with_texts(self, change: Callable[[str], str]) -> OutputFormat:
        reasoning, calls, channels = self.reasoning, self.calls, self.channels
        if reasoning is not None:
            opens, closes = (tuple(map(change, texts)) for texts in (reasoning.opens, reasoning.closes))
            reasoning = replace(reasoning, opens=opens, closes=closes)
        if calls is not None:
            calls = replace(
                calls,
                call=tuple(with_texts(element, change) for element in calls.call),
                opening=tuple(with_texts(element, change) for element in calls.opening),
                separator=tuple(with_texts(element, change) for element in calls.separator),
                closing=tuple(with_texts(element, change) for element in calls.closing),
            )
        if channels is not None:
            start, channel, constrain, message, end, call, over = map(change, channels.marks)
            channels = replace(
                channels,
                start=start,
                channel=channel,
                constrain=constrain,
                message=message,
                end=end,
                call=call,
                over=over,
            )
        hidden = tuple(map(change, self.hidden))
        return replace(self, reasoning=reasoning, calls=calls, channels=channels, hidden=hidden)


@dataclass(frozen=True, slots=True)
class BoundFormat:
    """A format for one vocabulary: in the texts of `format`, each special token is one character. `special` gives the
    characters by the tokens' texts."""

    format: OutputFormat
    special: Mapping[str, str] = field(default_factory=dict)

    def token_of(self, character: str) -> str | None:
        """The special token that a character stands for."""
        return next((token for token, mark in self.special.items() if mark == character), None)
