"""Usage reaches its file soon after it was counted, and what could not be written goes with the next."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.router.access import usage_saver
from slipstream.router.access.usage import Account, UsageCounts, UsageFile, UsageTotals
from slipstream.router.access.usage_saver import UsageSaver

ACCOUNT = Account("k", "t", "m")
REQUEST = UsageCounts(1, 0, 10, 2, 5)
TIMEOUT_S = 10.0


class Disk(UsageFile):
    """A file whose writes a test can hold up, or let fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes: list[int] = []  # the number of requests in each
        self.has_begun = threading.Event()
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_full = False

    def append(self, entries: dict[Account, UsageCounts], up_to: int = 0) -> None:
        self.has_begun.set()
        assert self.may_write.wait(TIMEOUT_S)
        if self.is_full:
            raise OSError("no space left")
        self.writes.append(sum(counts.num_requests for counts in entries.values()))
        super().append(entries, up_to)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_saver, "SAVE_AFTER_S", 0.01)


def saving(folder: Path, work: Callable[[UsageSaver, Disk], Awaitable[None]]) -> Disk:
    """Runs `work` with a saver, which is closed then."""
    disk = Disk(folder / "usage.jsonl")

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            saver = UsageSaver(UsageTotals(), folder / "usage.jsonl", pool)
            saver._file = disk
            saver.open()
            async with asyncio.timeout(TIMEOUT_S):
                await work(saver, disk)
                await saver.close()

    asyncio.run(main())
    return disk


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def num_saved(folder: Path) -> int:
    return sum(counts.num_requests for counts in UsageFile(folder / "usage.jsonl").load().values())


def test_requests_that_are_counted_together_are_saved_together(tmp_path: Path) -> None:
    async def work(saver: UsageSaver, disk: Disk) -> None:
        for _ in range(3):
            saver.count(ACCOUNT, REQUEST)
        await until(lambda: disk.writes == [3])
        saver.count(ACCOUNT, REQUEST)
        await until(lambda: disk.writes == [3, 1])

    assert saving(tmp_path, work).writes == [3, 1]  # nothing was left for the end
    assert num_saved(tmp_path) == 4


def test_what_is_counted_during_a_save_is_saved_soon_though_nothing_follows(tmp_path: Path) -> None:
    async def work(saver: UsageSaver, disk: Disk) -> None:
        disk.may_write.clear()
        saver.count(ACCOUNT, REQUEST)
        await until(disk.has_begun.is_set)
        saver.count(ACCOUNT, REQUEST)
        timer = saver._timer
        await until(lambda: saver._timer is not timer)  # the first save takes longer than it is until the next
        disk.may_write.set()
        await until(lambda: disk.writes == [1, 1])

    saving(tmp_path, work)
    assert num_saved(tmp_path) == 2


def test_what_could_not_be_written_goes_with_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(saver: UsageSaver, disk: Disk) -> None:
        disk.is_full = True
        saver.count(ACCOUNT, REQUEST)
        await until(lambda: "no space left" in caplog.text)
        disk.is_full = False
        saver.count(ACCOUNT, REQUEST)
        await until(lambda: disk.writes == [2])

    with caplog.at_level(logging.ERROR):
        saving(tmp_path, work)
    assert num_saved(tmp_path) == 2


def test_the_end_waits_for_a_save_and_saves_the_rest(tmp_path: Path) -> None:
    async def work(saver: UsageSaver, disk: Disk) -> None:
        disk.may_write.clear()
        saver.count(ACCOUNT, REQUEST)
        await until(disk.has_begun.is_set)
        saver.count(ACCOUNT, REQUEST)
        asyncio.get_running_loop().call_soon(disk.may_write.set)

    assert saving(tmp_path, work).writes == [1, 1]
    assert num_saved(tmp_path) == 2
