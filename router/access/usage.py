"""What each key has used of each model: counted in memory, and saved to an append-only file."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

COMPACT_BYTES = 4 << 20  # a larger file is compacted, to one line for each key and model


@dataclass(slots=True)
class UsageCounts:
    """Sums over requests. `num_cached_tokens` is part of the prompt tokens, `num_errors` part of the requests."""

    num_requests: int = 0
    num_errors: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0

    def minus(self, other: UsageCounts) -> UsageCounts:
        return UsageCounts(
            self.num_requests - other.num_requests,
            self.num_errors - other.num_errors,
            self.num_prompt_tokens - other.num_prompt_tokens,
            self.num_cached_tokens - other.num_cached_tokens,
            self.num_output_tokens - other.num_output_tokens,
        )

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def add(self, other: UsageCounts) -> None:
        self.num_requests += other.num_requests
        self.num_errors += other.num_errors
        self.num_prompt_tokens += other.num_prompt_tokens
        self.num_cached_tokens += other.num_cached_tokens
        self.num_output_tokens += other.num_output_tokens


class Account(NamedTuple):
    """A key's usage of a model. Without keys, both names are empty."""

    key: str
    tenant: str
    model: str


class UsageTotals:
    """All usage ever counted, and how much of it has been saved."""

    def __init__(self) -> None:
        self._total: dict[Account, UsageCounts] = {}
        self._saved: dict[Account, UsageCounts] = {}

    def add(self, account: Account, counts: UsageCounts) -> None:
        total = self._total.get(account)
        if total is None:
            total = self._total[account] = UsageCounts()
        total.add(counts)

    def restore(self, entries: Iterable[tuple[Account, UsageCounts]]) -> None:
        """Adds what was counted, and saved, before this process started."""
        for account, counts in entries:
            self._total[account] = counts
            self._saved[account] = replace(counts)

    def __iter__(self) -> Iterator[tuple[Account, UsageCounts]]:
        return iter(self._total.items())

    def unsaved(self) -> dict[Account, UsageCounts]:
        """What was added since the last save."""
        nothing = UsageCounts()
        changes = {account: total.minus(self._saved.get(account, nothing)) for account, total in self._total.items()}
        return {account: counts for account, counts in changes.items() if counts != nothing}

    def note_saved(self, entries: dict[Account, UsageCounts]) -> None:
        for account, counts in entries.items():
            self._saved.setdefault(account, UsageCounts()).add(counts)


class UsageFile:
    """Lines of JSON, each with an account's usage since the line before. A line counts only if its newline is there, so
    a crash or a full disk costs no more than the latest ones. `up_to` in a line is the number of the latest record of
    the journal that is in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.saved: dict[Account, int] = {}  # the latest `up_to` of each account, once the file is loaded
        self._compact_above_bytes = COMPACT_BYTES

    def load(self) -> dict[Account, UsageCounts]:
        """The sums so far; empty if there is no file yet. Raises OSError."""
        sums: dict[Account, UsageCounts] = {}
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        lines = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                account, counts, up_to = _parse(line)
            except (ValueError, KeyError, TypeError):
                log.warning("%s:%d: not a line of usage; it is left out", self._path, number)
            else:
                sums.setdefault(account, UsageCounts()).add(counts)
                self.saved[account] = max(self.saved.get(account, 0), up_to)
        if len(data) > self._compact_above_bytes:
            self._compact(sums)
        elif not data or not data.endswith(b"\n"):
            self._append(b"\n" if data else b"")  # ends a torn line, and finds out now if the file cannot be written
        return sums

    def append(self, entries: dict[Account, UsageCounts], up_to: int = 0) -> None:
        """Appends lines and blocks until they are on disk. Raises OSError. If the file has grown too large, it is
        compacted; otherwise each key in use would add megabytes a day."""
        num_bytes = self._append(b"".join(_line(account, counts, up_to) for account, counts in entries.items()))
        if num_bytes > self._compact_above_bytes:
            try:
                self.load()
            except OSError as error:  # the lines were written nevertheless
                self._compact_above_bytes *= 2
                log.warning("%s: has %d bytes, but cannot be compacted: %s", self._path, num_bytes, error)

    def _append(self, data: bytes) -> int:
        """Returns how large the file is then."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            num_before = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError("the disk took only a part of it")
                os.fdatasync(descriptor)
            except OSError:
                os.ftruncate(descriptor, num_before)  # remove it: the same usage will be part of the next line
                raise
            return num_before + len(data)
        finally:
            os.close(descriptor)

    def _compact(self, sums: dict[Account, UsageCounts]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.new")
        with temporary.open("wb") as file:
            os.fchmod(file.fileno(), stat.S_IMODE(self._path.stat().st_mode))  # keeps who may read it
            num_bytes = file.write(b"".join(_line(*entry, self.saved[entry[0]]) for entry in sums.items()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        self._compact_above_bytes = max(COMPACT_BYTES, 2 * num_bytes)


def _line(account: Account, counts: UsageCounts, up_to: int) -> bytes:
    values = {**account._asdict(), **asdict(counts), "up_to": up_to}
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _parse(line: bytes) -> tuple[Account, UsageCounts, int]:
    """Raises ValueError, KeyError or TypeError."""
    raw = json.loads(line)
    account = Account(*(str(raw[name]) for name in Account._fields))
    counts = [raw[field.name] for field in fields(UsageCounts)]
    up_to = raw.get("up_to", 0)  # which earlier versions did not write
    if not all(type(count) is int for count in (*counts, up_to)):
        raise TypeError("counts must be whole numbers")
    return account, UsageCounts(*counts), up_to
