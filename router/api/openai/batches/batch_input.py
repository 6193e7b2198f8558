"""The input of a batch: one request as JSON on each line. Reading it blocks."""

from __future__ import annotations

import codecs
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from slipstream.router.api.openai.batches.batch import BatchProblem

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
ENDPOINTS = (*GENERATING, "/v1/embeddings", "/v1/rerank")  # the latter two where tensor models serve them
MAX_PROBLEMS = 100  # reported
MAX_ID_CHARS = 512
MAX_SHOWN = 64


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request. `number` counts the lines of the file from 1; `body` is JSON."""

    number: int
    custom_id: str
    url: str
    body: bytes


class LineError(Exception):
    """What is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(slots=True)
class BatchInput:
    """Where each request is in the file, so that none of them stays in memory; requests have indices in the order of
    the file. `problems` are the mistakes that were found, `MAX_PROBLEMS` at most."""

    path: Path
    custom_ids: list[str] = field(default_factory=list)
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    problems: list[BatchProblem] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, endpoint: str, max_lines: int, max_line_bytes: int) -> BatchInput:
        """Checks all lines. Raises OSError."""
        found = cls(path)
        seen: set[str] = set()
        with path.open("rb") as file:
            offset, number = 0, 0
            while len(found.problems) < MAX_PROBLEMS and (text := file.readline(max_line_bytes + 1)):
                number += 1
                begin, offset = offset, offset + len(text)
                if len(text) > max_line_bytes:
                    found._complain(number, LineError("line_too_large", f"It is longer than {max_line_bytes} bytes."))
                    break
                if not text.strip():
                    continue
                try:
                    line = parse_line(number, text, endpoint)
                    if line.custom_id in seen:
                        raise LineError(
                            "duplicate_custom_id", f"{_shown(line.custom_id)} was used before.", "custom_id"
                        )
                except LineError as error:
                    found._complain(number, error)
                    continue
                if len(found.custom_ids) >= max_lines:
                    message = f"There are more than {max_lines} requests (router.batches.max_lines)."
                    found._complain(number, LineError("too_many_requests", message))
                    break
                seen.add(line.custom_id)
                found.custom_ids.append(line.custom_id)
                found.numbers.append(number)
                found.offsets.append(begin)
        if not found.custom_ids and not found.problems:
            found.problems.append(BatchProblem("empty_file", "There is no request in the file."))
        return found

    def __len__(self) -> int:
        return len(self.custom_ids)

    def line(self, index: int, endpoint: str) -> BatchLine:
        """One of the requests. Raises OSError, and LineError if the file has changed."""
        with self.path.open("rb") as file:
            return _line_at(file, self.offsets[index], self.numbers[index], endpoint)

    def _complain(self, number: int, error: LineError) -> None:
        self.problems.append(BatchProblem(error.code, f"Line {number}: {error}", error.param, number))


def _line_at(file: BinaryIO, offset: int, number: int, endpoint: str) -> BatchLine:
    file.seek(offset)
    return parse_line(number, file.readline(), endpoint)


def parse_line(number: int, text: bytes, endpoint: str | None = None) -> BatchLine:
    """A line of a batch for this endpoint; None: for any of `ENDPOINTS`. Raises LineError."""
    if number == 1:
        text = text.removeprefix(codecs.BOM_UTF8)  # which editors on Windows write
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise LineError("invalid_json_line", f"It is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise LineError("invalid_json_line", f"It must be an object, got {_shown(fields)}.")
    custom_id, method, url, body = (fields.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS:
        limit = f"a string of 1 to {MAX_ID_CHARS} characters"
        raise LineError("invalid_custom_id", f"'custom_id' must be {limit}, got {_shown(custom_id)}.", "custom_id")
    if method != "POST":
        raise LineError("invalid_method", f"'method' must be POST, got {_shown(method)}.", "method")
    if not isinstance(url, str) or url not in ((endpoint,) if endpoint is not None else ENDPOINTS):
        accepted = f"the batch's endpoint {endpoint}" if endpoint is not None else " or ".join(ENDPOINTS)
        raise LineError("mismatched_url", f"'url' must be {accepted}, got {_shown(url)}.", "url")
    if not isinstance(body, dict):
        raise LineError("invalid_body", f"'body' must be an object, got {_shown(body)}.", "body")
    if body.get("stream"):
        raise LineError("stream_in_batch", "'body.stream' must be false: a batch has whole answers.", "body.stream")
    try:
        return BatchLine(number, custom_id, url, orjson.dumps(body))
    except orjson.JSONEncodeError:  # it reads more levels than it writes
        raise LineError("invalid_body", "'body' is nested too deeply.", "body") from None


def _shown(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode() if value is not None else "nothing"
    except orjson.JSONEncodeError:
        return "something that is nested too deeply"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
