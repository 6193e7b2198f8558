"""Saves what a `UsageTotals` counts to a `UsageFile`, soon after it was counted."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from pathlib import Path

from slipstream.router.access.usage import Account, UsageCounts, UsageFile, UsageTotals
from slipstream.router.access.usage_journal import UsageJournal

log = logging.getLogger(__name__)

SAVE_AFTER_S = 2.0  # how many seconds of usage the end of the whole machine may cost


class UsageSaver:
    """Runs on one event loop; the file is written in `executor`. If it cannot be written, the same usage is tried again
    with the next. The journal beside the file keeps what was not saved yet if the process is killed."""

    def __init__(self, totals: UsageTotals, path: Path, executor: Executor | None) -> None:
        self._totals = totals
        self._file = UsageFile(path)
        self._journal_path = path.with_name(f".{path.name}.unsaved")
        self._journal: UsageJournal | None = None
        self._executor = executor
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Adds what the file has to the totals. Blocks. Raises OSError if the file cannot be used."""
        try:
            self._totals.restore(self._file.load().items())
        except OSError as error:
            raise OSError(error.errno, f"cannot use access.usage_file: {error}") from error
        journal = UsageJournal(self._journal_path)
        try:
            unsaved = journal.open(self._file.saved)
        except OSError as error:
            log.warning("if the router is killed, usage of %g s will be lost: %s", SAVE_AFTER_S, error)
            return
        self._journal = journal
        for record in unsaved:
            self._totals.add(record.account, record.counts)
        if unsaved:
            log.info("the usage of %d requests was counted, but not saved by the previous router", len(unsaved))

    def count(self, account: Account, counts: UsageCounts) -> None:
        """Counts the usage of a request, and saves it soon."""
        self._totals.add(account, counts)
        if self._journal is not None:
            self._journal.note(account, counts)
        if self._timer is None:
            self._begin_soon()

    async def close(self) -> None:
        """Saves the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._saving is not None:
            await self._saving
        await self._save()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _begin_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAVE_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._saving is not None:  # what it does not have must not wait for another request
            self._begin_soon()
            return
        self._saving = asyncio.get_running_loop().create_task(self._save_and_note())

    async def _save_and_note(self) -> None:
        try:
            await self._save()
        finally:
            self._saving = None

    async def _save(self) -> None:
        unsaved = self._totals.unsaved()
        if not unsaved:
            return
        up_to = self._journal.begin_save() if self._journal is not None else 0
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._file.append, unsaved, up_to)
        except OSError as error:
            log.error("the usage could not be saved, and is tried again with the next: %s", error)
        else:
            self._totals.note_saved(unsaved)
            if self._journal is not None:
                self._journal.end_save(up_to)
