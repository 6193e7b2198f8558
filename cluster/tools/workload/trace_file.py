"""Reads published traces, whose format is recognised by the content of the file.

    JSON lines    Mooncake, AIPerf: {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}
    CSV           Azure: TIMESTAMP,ContextTokens,GeneratedTokens as published, or arrival_s,input_length,output_length

docs/reference/workloads.md has the columns. Every mistake is a `TraceError` that names file, line and column.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS, Arrival, TraceError
from slipstream.cluster.tools.workload.trace_lines import trace_lines

MAX_TOKENS = 100_000_000  # per request; more cannot be the length of a prompt
YEAR_S = 365 * 86_400.0
MAX_SPAN_S = 10 * YEAR_S  # from the first request to the last; if it is more, times must be in another unit
CSV_COLUMNS = (
    ("arrival_s", "input_length", "output_length"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)


Row = tuple[int, Arrival]  # the line, and the request with the time as given there


def read_trace(path: Path, limit: int | None = None) -> list[Arrival]:
    """The requests of the first `limit` rows in order of arrival, with times that count from the first of them. Raises
    TraceError."""
    arrivals: list[Arrival] = []
    start_s, end_s, first, last = math.inf, -math.inf, 0, 0
    with closing(trace_lines(path)) as texts:
        for line, arrival in _rows(path, texts):
            if arrival.at_s < start_s:
                start_s, first = arrival.at_s, line
            if arrival.at_s > end_s:
                end_s, last = arrival.at_s, line
            arrivals.append(arrival)
            if limit is not None and len(arrivals) >= limit:
                break
    if not arrivals:
        raise TraceError(path, 1, "there is no request in it")
    if end_s - start_s > MAX_SPAN_S:
        reason = (
            f"this request comes {end_s - start_s:.3g} s after the first one (line {first}), which is "
            f"{(end_s - start_s) / YEAR_S:.3g} years: are times in another unit?"
        )
        raise TraceError(path, last, reason)
    arrivals.sort(key=attrgetter("at_s"))
    for at, a in enumerate(arrivals):  # in place, because a second list of ten million would take gigabytes
        at_s = a.at_s - start_s
        arrivals[at] = Arrival(at_s, a.input_length, a.output_length, a.blocks, a.tenant, a.session, a.model)
    return arrivals


def _rows(path: Path, texts: Iterable[str]) -> Iterator[Row]:
    lines = enumerate(texts, 1)
    first = next(((line, text) for line, text in lines if text.strip()), None)
    if first is None:
        raise TraceError(path, 1, "the file is empty")
    whole = chain([first], lines)
    start = first[1].lstrip()
    if start.startswith("["):
        raise TraceError(path, first[0], "a JSON object in each line was expected, got a list")
    return _json_rows(path, whole) if start.startswith("{") else _csv_rows(path, whole)


def _json_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
    numbers: dict[int, int] = {}  # small numbers for hash ids, which may be arbitrarily large
    for line, text in lines:
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(path, line, f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(path, line, f"an object was expected, got {text.strip()[:40]!r}")
        at_ms = _number(path, line, "timestamp", row.get("timestamp"))
        input_length = _tokens(path, line, "input_length", row.get("input_length"))
        yield (
            line,
            Arrival(
                at_ms / 1e3,
                input_length,
                _tokens(path, line, "output_length", row.get("output_length")),
                _blocks(path, line, row.get("hash_ids"), input_length, numbers),
                _name(path, line, "tenant", row.get("tenant")),
                _name(path, line, "session_id", row.get("session_id")),
                _name(path, line, "model", row.get("model")),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Columns:
    """The positions and the names of the three columns that matter."""

    names: Sequence[str]
    places: Sequence[int]
    header: Sequence[str]

    @classmethod
    def of(cls, path: Path, line: int, header: Sequence[str]) -> _Columns:
        """Finds the columns in a header. Raises TraceError if one is missing or occurs twice."""
        places = {name.casefold(): at for at, name in enumerate(header)}
        names = next((names for names in CSV_COLUMNS if all(name.casefold() in places for name in names)), None)
        if names is None:
            wanted = " or ".join(",".join(names) for names in CSV_COLUMNS)
            raise TraceError(path, line, f"columns {wanted} were expected, got {','.join(header)[:80] or 'none'}")
        counts = Counter(name.casefold() for name in header)
        for name in names:
            if counts[name.casefold()] > 1:
                raise TraceError(path, line, f"column {name} is there {counts[name.casefold()]} times")
        return cls(names, [places[name.casefold()] for name in names], header)


def _csv_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
    line = 0

    def texts() -> Iterator[str]:
        nonlocal line
        for line, text in lines:  # noqa: B007 - the line that a row ends in
            yield text

    reader = csv.reader(texts())
    columns: _Columns | None = None
    time_of: Callable[[Path, int, str, str | None], float] = _number
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise TraceError(path, line, f"not CSV: {error}") from None
        if fields is None:
            return
        if not fields:
            continue
        if columns is None:
            columns = _Columns.of(path, line, _stripped(fields))
            time_of = _number if columns.names[0] == "arrival_s" else _time_s
            continue
        if fields[0].lstrip("\ufeff ") == columns.header[0] and _stripped(fields) == columns.header:
            continue  # concatenated files contain several headers
        if len(fields) > len(columns.header) and any(field.strip() for field in fields[len(columns.header) :]):
            reason = f"{len(fields)} fields, and the header has {len(columns.header)}: {','.join(fields)[:80]}"
            raise TraceError(path, line, reason)
        at, length, answer = (fields[place] if place < len(fields) else None for place in columns.places)
        name, length_name, answer_name = columns.names
        at_s = time_of(path, line, name, at)
        yield line, Arrival(at_s, _tokens(path, line, length_name, length), _tokens(path, line, answer_name, answer))


def _stripped(fields: Sequence[str]) -> list[str]:
    return [field.strip().removeprefix("\ufeff").strip() for field in fields]


def _time_s(path: Path, line: int, key: str, text: str | None) -> float:
    """The seconds of a timestamp such as 2023-11-16 18:15:46.6805900, with or without a time zone."""
    moment = (text or "").strip()
    whole, dot, fraction = moment.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    try:
        seconds = datetime.fromisoformat(whole + fraction[len(digits) :] if dot else moment)
        if seconds.tzinfo is None:
            seconds = seconds.replace(tzinfo=UTC)
        return seconds.timestamp() + (float(f"0.{digits}") if digits else 0.0)
    except (ValueError, OverflowError):
        raise TraceError(path, line, f"{key}: a time was expected, got {text!r:.60}") from None


def _number(path: Path, line: int, key: str, value: Any) -> float:
    try:
        if value is None or isinstance(value, bool | list | dict):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):  # JSON allows integers that do not fit into a float
        raise TraceError(path, line, f"{key}: a number was expected, got {value!r:.40}") from None
    if not math.isfinite(number):
        raise TraceError(path, line, f"{key}: a finite number was expected, got {value!r:.40}")
    return number


def _tokens(path: Path, line: int, key: str, value: Any) -> int:
    """A number of tokens, at least 1: traces contain empty answers, which cannot be requested."""
    number = _number(path, line, key, value)
    if number != int(number) or not 0 <= number <= MAX_TOKENS:
        raise TraceError(path, line, f"{key}: a whole number from 0 to {MAX_TOKENS:,} was expected, got {value!r:.40}")
    return max(int(number), 1)


def _blocks(path: Path, line: int, ids: Any, input_length: int, numbers: dict[int, int]) -> tuple[int, ...]:
    """The blocks of a prompt, as numbers in order of first appearance."""
    if ids is None:  # some exporters write null for missing values
        return ()
    if not isinstance(ids, list) or any(not isinstance(one, int) or isinstance(one, bool) for one in ids):
        raise TraceError(path, line, f"hash_ids: a list of whole numbers was expected, got {ids!r:.40}")
    most = -(-input_length // BLOCK_TOKENS)
    if len(ids) > most:
        reason = f"hash_ids: {len(ids)} blocks of {BLOCK_TOKENS} tokens are more than {input_length} tokens have"
        raise TraceError(path, line, reason)
    return tuple([numbers.setdefault(one, len(numbers)) for one in ids])


def _name(path: Path, line: int, key: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TraceError(path, line, f"{key}: a name was expected, got {value!r:.40}")
    return str(value)
