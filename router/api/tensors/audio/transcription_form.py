"""The form that `POST /v1/audio/transcriptions` gets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.router.api.openai.files.multipart import FormPart, parse_form
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
FIELDS = frozenset({"file", "model", "language", "prompt", "response_format", "temperature", "stream"})
GRANULARITIES, INCLUDE = "timestamp_granularities", "include"
MAX_FIELD_CHARS = 32_000


@dataclass(frozen=True, slots=True)
class TranscriptionForm:
    """`temperature` None: the model's default."""

    file: FormPart
    model: str
    language: str = ""
    prompt: str = ""
    response_format: str = "json"
    temperature: float | None = None
    stream: bool = False

    @classmethod
    def of(cls, request: Request) -> TranscriptionForm:
        """Raises HttpError."""
        parts = parse_form(request.body, request.headers.get(b"content-type", b""))
        fields = {name.removesuffix("[]"): part for name, part in parts.items()}
        texts = {name: text_of(part) for name, part in fields.items() if name != "file"}
        for name in ("file", "model"):
            if name not in fields:
                message = f"Missing required parameter: '{name}'."
                raise HttpError(400, message, param=name, code="missing_required_parameter")
        check_others(texts)
        form = texts.get("response_format", "json")
        if form not in FORMATS:
            raise wrong("response_format", form, f"must be one of {', '.join(FORMATS)}")
        return cls(
            fields["file"],
            texts["model"],
            texts.get("language", ""),
            texts.get("prompt", ""),
            form,
            temperature_of(texts.get("temperature")),
            truth_of(texts.get("stream", "false")),
        )


def text_of(part: FormPart) -> str:
    text = part.text()
    if len(text) > MAX_FIELD_CHARS:
        raise HttpError(400, f"'{part.name}' is longer than {MAX_FIELD_CHARS} characters.", param=part.name)
    return text


def check_others(texts: Mapping[str, str]) -> None:
    """Raises HttpError for what would change the answer and is not served. Other unknown fields are ignored."""
    if texts.get(GRANULARITIES, "segment") != "segment":
        raise unsupported(GRANULARITIES, texts[GRANULARITIES], "segment")
    if texts.get(INCLUDE):
        raise unsupported(INCLUDE, texts[INCLUDE], "nothing")


def unsupported(name: str, value: str, accepted: str) -> HttpError:
    message = f"'{name}' {value[:64]!r} is not supported; accepted: {accepted}."
    return HttpError(400, message, param=name, code="unsupported_parameter")


def wrong(name: str, value: str, problem: str) -> HttpError:
    return HttpError(400, f"'{name}' {problem}, got {value[:64]!r}.", param=name, code="invalid_value")


def temperature_of(text: str | None) -> float | None:
    if text is None or not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise wrong("temperature", text, "must be a number from 0 to 1")
    return value


def truth_of(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", ""):
        raise wrong("stream", text, "must be true or false")
    return text.lower() in ("true", "1")
