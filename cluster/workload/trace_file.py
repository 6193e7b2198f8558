"""Traces that others have published, told apart by what is in the file.

    JSON lines    Mooncake, AIPerf: {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}
    CSV           Azure: TIMESTAMP,ContextTokens,GeneratedTokens as published, or arrival_s,input_length,output_length

docs/workloads.md has the columns. Every mistake is a `TraceError` that names file and line.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from slipstream.cluster.workload.arrival import BLOCK_TOKENS, Arrival, TraceError

MAX_TOKENS = 100_000_000  # of one request: more is no length of a prompt
CSV_COLUMNS = (
    ("arrival_s", "input_length", "output_length"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)


def read_trace(path: Path, limit: int | None = None) -> list[Arrival]:
    """The requests of the first `limit` rows in the order of their coming, which counts from the first of them. Raises
    TraceError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(path, 1, f"cannot be read: {error}") from None
    rows = _json_lines(path) if first.lstrip().startswith("{") else _csv_rows(path)
    arrivals = []
    try:
        for arrival in rows:
            arrivals.append(arrival)
            if limit is not None and len(arrivals) >= limit:
                break
    except UnicodeDecodeError as error:
        raise TraceError(path, len(arrivals) + 1, f"not UTF-8 text: {error}") from None
    if not arrivals:
        raise TraceError(path, 1, "there is no request in it")
    arrivals.sort(key=lambda arrival: arrival.at_s)
    start_s = arrivals[0].at_s
    return [Arrival(a.at_s - start_s, a.input_length, a.output_length, a.blocks, a.tenant, a.session) for a in arrivals]


def _json_lines(path: Path) -> Iterator[Arrival]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise TraceError(path, line, f"not JSON: {error}") from None
            if not isinstance(row, dict):
                raise TraceError(path, line, f"an object was expected, got {text.strip()[:40]!r}")
            at_ms = _number(path, line, row, "timestamp")
            input_length = _tokens(path, line, row, "input_length")
            yield Arrival(
                at_ms / 1e3,
                input_length,
                _tokens(path, line, row, "output_length"),
                _blocks(path, line, row, input_length),
                _name(path, line, row, "tenant"),
                _name(path, line, row, "session_id"),
            )


def _csv_rows(path: Path) -> Iterator[Arrival]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            present = [name.strip() for name in reader.fieldnames or ()]
        except csv.Error as error:
            raise TraceError(path, 1, f"not CSV: {error}") from None
        columns = next((names for names in CSV_COLUMNS if set(names) <= set(present)), None)
        if columns is None:
            wanted = " or ".join(",".join(names) for names in CSV_COLUMNS)
            raise TraceError(path, 1, f"columns {wanted} were expected, got {','.join(present)[:80] or 'none'}")
        reader.fieldnames = present
        at, length, answer = columns
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise TraceError(path, reader.line_num, f"not CSV: {error}") from None
            if row is None:
                return
            line = reader.line_num
            at_s = _number(path, line, row, at) if at == "arrival_s" else _time_s(path, line, row[at])
            yield Arrival(at_s, _tokens(path, line, row, length), _tokens(path, line, row, answer))


def _time_s(path: Path, line: int, text: str | None) -> float:
    """Seconds of a time of day such as 2023-11-16 18:15:46.6805900, with or without a zone; all of a file alike."""
    moment = (text or "").strip()
    whole, dot, fraction = moment.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    try:
        seconds = datetime.fromisoformat(whole + fraction[len(digits) :] if dot else moment)
        if seconds.tzinfo is None:
            seconds = datetime.fromisoformat(f"{seconds.isoformat()}+00:00")
        return seconds.timestamp() + (float(f"0.{digits}") if digits else 0.0)
    except ValueError:
        raise TraceError(path, line, f"TIMESTAMP: a time was expected, got {text!r}") from None


def _number(path: Path, line: int, row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    try:
        if value is None or isinstance(value, bool | list | dict):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):  # JSON has whole numbers that no float holds
        raise TraceError(path, line, f"{key}: a number was expected, got {value!r:.40}") from None
    if not math.isfinite(number) or number < 0:
        raise TraceError(path, line, f"{key}: a number of at least 0 was expected, got {value!r}")
    return number


def _tokens(path: Path, line: int, row: Mapping[str, Any], key: str) -> int:
    """At least 1: traces have answers of no tokens, which nobody can ask for."""
    number = _number(path, line, row, key)
    if number != int(number) or number > MAX_TOKENS:
        raise TraceError(path, line, f"{key}: a number of tokens was expected, got {row.get(key)!r}")
    return max(int(number), 1)


def _blocks(path: Path, line: int, row: Mapping[str, Any], input_length: int) -> tuple[int, ...]:
    ids = row.get("hash_ids")
    if ids is None:  # exporters write null for what they leave out
        return ()
    if not isinstance(ids, list) or any(not isinstance(one, int) or isinstance(one, bool) or one < 0 for one in ids):
        raise TraceError(path, line, "hash_ids: a list of numbers of at least 0 was expected")
    most = -(-input_length // BLOCK_TOKENS)
    if len(ids) > most:
        reason = f"hash_ids: {len(ids)} blocks of {BLOCK_TOKENS} tokens are more than {input_length} tokens have"
        raise TraceError(path, line, reason)
    return tuple(ids)


def _name(path: Path, line: int, row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TraceError(path, line, f"{key}: a name was expected, got {value!r}")
    return str(value)
