"""A transcript, and the forms that it is answered in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


@dataclass(slots=True)
class Segment:
    """Times are seconds from the beginning of the audio."""

    start_s: float
    end_s: float
    text: str


@dataclass(slots=True)
class Transcript:
    """`language` is what the client or the model has said."""

    duration_s: float
    task: str
    language: str = ""
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Models of Whisper's kind begin a segment with a space; others leave it to the reader."""
        return joined(segment.text for segment in self.segments)

    def shown(self, form: str) -> tuple[bytes, str]:
        """The body of the answer, and its content type."""
        if form == "text":
            return f"{self.text}\n".encode(), TEXT
        if form == "srt":
            return self._subtitles(",", "", numbered=True).encode(), TEXT
        if form == "vtt":
            return self._subtitles(".", "WEBVTT\n\n", numbered=False).encode(), TEXT
        answer: dict[str, Any] = {"text": self.text}
        if form == "verbose_json":
            answer = {"task": self.task, "language": self.language, "duration": self.duration_s, **answer}
            answer["segments"] = [
                {"id": index, "start": one.start_s, "end": one.end_s, "text": one.text}
                for index, one in enumerate(self.segments)
            ]
        answer["usage"] = self.usage
        return orjson.dumps(answer), JSON

    @property
    def usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": math.ceil(self.duration_s)}

    def _subtitles(self, point: str, head: str, *, numbered: bool) -> str:
        cues = []
        for number, segment in enumerate(self.segments, 1):
            times = f"{clock(segment.start_s, point)} --> {clock(segment.end_s, point)}"
            name = f"{number}\n" if numbered else ""
            cues.append(f"{name}{times}\n{segment.text.strip().replace('-->', '->')}\n")
        return head + "\n".join(cues)


class GrowingText:
    """The text of segments as they come, without white space at its beginning and its end."""

    def __init__(self) -> None:
        self._begins = True  # there was nothing but white space
        self._last = ""  # character
        self._held = ""  # white space that is part of it if more text comes

    def add(self, text: str) -> str:
        """Returns what it grows by."""
        if self._last and not self._last.isspace() and not text[:1].isspace():
            text = f" {text}"
        self._last = text[-1:] or self._last
        piece = text.lstrip() if self._begins else self._held + text
        grown = piece.rstrip()
        self._begins = self._begins and not grown
        self._held = piece[len(grown) :]
        return grown


def joined(texts: Iterable[str]) -> str:
    return "".join(map(GrowingText().add, texts))


def clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds."""
    millis = round(seconds * 1000)
    return f"{millis // 3_600_000:02}:{millis // 60_000 % 60:02}:{millis // 1000 % 60:02}{point}{millis % 1000:03}"
