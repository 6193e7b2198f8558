"""Usage that is not in the usage file yet, in memory that outlives the process, so that a killed router loses none.

    a request ends --> `UsageTotals`, and a record in the journal --every 2 s--> usage file

The journal is a mapped file: what is written to it is the kernel's at once, without a system call and without waiting
for a disk. (If the whole machine dies, the usage of the latest seconds is lost.) Records are numbered for ever. A line
of the usage file says up to which number it goes, so nothing is counted twice, however a save was interrupted.

Its records are in two halves. While one is being saved, further ones go to the other, and what was saved is forgotten
by beginning a half anew:

    | mark | saved up to | end of half 0 | end of half 1 | half 0: lines of JSON | half 1: lines of JSON |
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from slipstream.router.access.usage import Account, UsageCounts

MARK = 0x31554C53  # of this layout
FIELD_BYTES = 8  # of the four numbers at the beginning; one is written by a single instruction
HEADER_BYTES = 4 * FIELD_BYTES
HALF_BYTES = 1 << 20  # some 10,000 requests
IS_MARK, IS_SAVED, IS_END = 0, 1, 2  # the indices of those numbers; the second end follows the first


class Record(NamedTuple):
    """The usage of one request."""

    number: int
    account: Account
    counts: UsageCounts


class UsageJournal:
    """Life cycle: `open`, then `note` for each request and `begin_save` and `end_save` around each save, then
    `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._map: mmap.mmap
        self._numbers: memoryview
        self._half = 0  # that takes the records
        self._latest = [0, 0]  # the number of the latest record in each half
        self.number = 0  # of the latest record

    def open(self, saved: Mapping[Account, int]) -> list[Record]:
        """What was counted and is not in the usage file, which has an account's records up to the number in `saved`.
        Raises OSError, for example if another process has the journal."""
        num_bytes = HEADER_BYTES + 2 * HALF_BYTES
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, num_bytes)  # if the disk were full later, writing would kill the process
            self._map = mmap.mmap(descriptor, num_bytes)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._numbers = memoryview(self._map)[:HEADER_BYTES].cast("Q")
        if self._numbers[IS_MARK] != MARK:
            for index, value in ((IS_END, 0), (IS_END + 1, 0), (IS_SAVED, 0), (IS_MARK, MARK)):
                self._numbers[index] = value
        records = [record for half in (0, 1) for record in self._records(half)]
        all_saved = self._numbers[IS_SAVED]
        self.number = max([all_saved, *saved.values(), *self._latest])
        self._half = int(self._latest[1] > self._latest[0])
        return [record for record in records if record.number > max(all_saved, saved.get(record.account, 0))]

    def note(self, account: Account, counts: UsageCounts) -> None:
        """Keeps the usage of one request. While the usage cannot be saved, the halves become full, and further records
        are left out."""
        self.number += 1
        line = orjson.dumps((self.number, *account, *_numbers(counts))) + b"\n"
        end = self._numbers[IS_END + self._half]
        if end + len(line) > HALF_BYTES:
            return
        begin = self._begin_of(self._half) + end
        self._map[begin : begin + len(line)] = line
        self._numbers[IS_END + self._half] = end + len(line)  # now it counts
        self._latest[self._half] = self.number

    def begin_save(self) -> int:
        """What was noted so far is about to be saved. Returns the number of the latest record."""
        other = 1 - self._half
        if self._latest[other] <= self._numbers[IS_SAVED]:
            self._numbers[IS_END + other] = 0
            self._half = other
        return self.number

    def end_save(self, number: int) -> None:
        """The records up to this number are in the usage file."""
        self._numbers[IS_SAVED] = number

    def close(self) -> None:
        self._numbers.release()
        self._map.close()
        os.close(self._descriptor)

    def _records(self, half: int) -> Iterator[Record]:
        """Also notes the number of the latest one. What is no record, because the file was damaged, is left out."""
        begin, end = self._begin_of(half), min(self._numbers[IS_END + half], HALF_BYTES)
        for line in self._map[begin : begin + end].splitlines():
            try:
                record = _parse(orjson.loads(line))
            except (ValueError, TypeError):
                continue
            self._latest[half] = max(self._latest[half], record.number)
            yield record

    @staticmethod
    def _begin_of(half: int) -> int:
        return HEADER_BYTES + half * HALF_BYTES


def _numbers(used: UsageCounts) -> tuple[int, ...]:
    """The fields, in their order. (`dataclasses.astuple` takes four times as long as all else that a request costs.)"""
    return used.num_requests, used.num_errors, used.num_prompt_tokens, used.num_cached_tokens, used.num_output_tokens


def _parse(raw: Any) -> Record:
    """Raises ValueError or TypeError."""
    number, key, tenant, model, *counts = raw
    if not all(type(count) is int for count in (number, *counts)):
        raise TypeError("numbers must be whole")
    return Record(number, Account(str(key), str(tenant), str(model)), UsageCounts(*counts))
