"""Usage that a router has counted outlives it, and counts once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from slipstream.router.access.usage import Account, UsageCounts, UsageFile, UsageTotals
from slipstream.router.access.usage_journal import HALF_BYTES, UsageJournal
from slipstream.router.access.usage_saver import UsageSaver
from tests.support.router.fake_cluster import run

ONE, OTHER = Account("k", "t", "m"), Account("k2", "t", "m")
REQUEST = UsageCounts(1, 0, 10, 2, 5)
JOURNAL = ".usage.jsonl.unsaved"


def book_of(folder: Path) -> dict[Account, UsageCounts]:
    """What a router that starts now knows of."""
    totals = UsageTotals()
    saver = UsageSaver(totals, folder / "usage.jsonl", None)
    saver.open()
    run(saver.close)
    return dict(totals)


def times(count: int) -> UsageCounts:
    return UsageCounts(*(count * value for value in (1, 0, 10, 2, 5)))


def test_what_a_killed_process_had_counted_is_counted_once(tmp_path: Path) -> None:
    def count() -> None:
        async def main() -> None:
            with ThreadPoolExecutor(1) as pool:
                saver = UsageSaver(UsageTotals(), tmp_path / "usage.jsonl", pool)
                saver.open()
                for number in range(30):
                    saver.count(OTHER if number % 3 == 0 else ONE, REQUEST)
                    if number == 20:
                        await saver._save()
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())

    for kills in (1, 2):
        process = multiprocessing.get_context("fork").Process(target=count)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        if kills == 2:
            assert book_of(tmp_path) == {ONE: times(40), OTHER: times(20)}
    assert book_of(tmp_path) == {ONE: times(40), OTHER: times(20)}


@pytest.mark.parametrize("seed", range(30))
def test_a_kill_at_any_moment_of_any_save_loses_nothing_and_counts_nothing_twice(tmp_path: Path, seed: int) -> None:
    random, counted = Random(seed), {ONE: 0, OTHER: 0}
    for _ in range(6):  # routers
        file, journal, totals = UsageFile(tmp_path / "usage.jsonl"), UsageJournal(tmp_path / JOURNAL), UsageTotals()
        totals.restore(file.load().items())
        for record in journal.open(file.saved):
            totals.add(record.account, record.counts)
        assert {account: counts.num_requests for account, counts in totals} == {a: n for a, n in counted.items() if n}

        def count(most: int, totals: UsageTotals = totals, journal: UsageJournal = journal) -> None:
            for _ in range(random.randrange(most)):
                account = random.choice((ONE, OTHER))
                totals.add(account, REQUEST)
                journal.note(account, REQUEST)
                counted[account] += 1

        for _ in range(random.randrange(5)):  # saves that come to their end
            count(5)
            unsaved, up_to = totals.unsaved(), journal.begin_save()
            count(5)
            if random.random() < 0.8:  # otherwise the disk is full
                file.append(unsaved, up_to)
                count(3)
                totals.note_saved(unsaved)
                journal.end_save(up_to)
        last = random.randrange(4)  # how far the last one comes
        count(5)
        if last >= 1:
            unsaved, up_to = totals.unsaved(), journal.begin_save()
            count(5)
        if last == 2:  # its second line was not written any more
            file.append({account: counts for account, counts in unsaved.items() if account == ONE}, up_to)
        if last == 3:
            file.append(unsaved, up_to)
        journal.close()


def test_numbers_go_on_after_those_of_the_file_if_the_journal_was_lost(tmp_path: Path) -> None:
    UsageFile(tmp_path / "usage.jsonl").append({ONE: times(9)}, up_to=9)
    file, journal = UsageFile(tmp_path / "usage.jsonl"), UsageJournal(tmp_path / JOURNAL)
    file.load()
    assert journal.open(file.saved) == []
    journal.note(ONE, REQUEST)
    journal.close()
    assert book_of(tmp_path) == {ONE: times(10)}


def test_a_journal_is_full_while_the_usage_cannot_be_saved_and_empty_once_it_was(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path / JOURNAL)
    assert journal.open({}) == []
    num_fitting = HALF_BYTES // len(b'[10000,"k","t","m",1,0,10,2,5]\n')
    for _ in range(2 * num_fitting):
        journal.note(ONE, REQUEST)
    for _ in range(2):  # the first one leaves the half that is full
        journal.end_save(journal.begin_save())
    journal.note(ONE, REQUEST)
    number = journal.number
    journal.close()
    assert [record.number for record in journal.open({})] == [number]
    journal.close()


@pytest.mark.parametrize("damage", [b"", b"short", b"\xff" * 5000, b"\0" * (3 * HALF_BYTES)])
def test_a_damaged_journal_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(damage)
    journal = UsageJournal(tmp_path / JOURNAL)
    assert journal.open({}) == []
    journal.note(ONE, REQUEST)
    journal.close()
    assert book_of(tmp_path) == {ONE: REQUEST}


def test_a_router_whose_journal_another_one_has_counts_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / JOURNAL).mkdir()  # as a journal that cannot be opened
    assert book_of(tmp_path) == {}
    assert "usage of 2 s will be lost" in caplog.text
