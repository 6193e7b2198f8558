"""Requests without a seed: the router draws one, which only the journals of connections tell. Of answers that were
under way when a router was killed these are read, so that the same can be asked for again, undisturbed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from slipstream.router.http.failover.journal import Journal, JournalError
from tests.support.faults.jobs import Job

JOURNAL = "slipstream-connection"  # the name of its memory file


@dataclass(frozen=True)
class Drawn:
    """A whole answer to a job without a seed. `number` is that of its id."""

    number: int
    job: Job
    texts: dict[int, str]
    finishes: dict[int, str]

    @classmethod
    def of(cls, answer_id: str, job: Job, texts: dict[int, str], finishes: Sequence[tuple[int, str]]) -> Drawn:
        return cls(int(answer_id.rpartition("-")[2], 16), job, texts, dict(finishes))

    def compared(self, seed: int, undisturbed: Job) -> str:
        """What is wrong with it, in a sentence, or nothing."""
        known = range(self.job.num_choices)
        texts = tuple(self.texts.get(choice, "") for choice in known)
        if texts == undisturbed.texts and tuple(self.finishes[choice] for choice in known) == undisturbed.finishes:
            return ""
        return (
            f"job {self.job.number} with the drawn seed {seed}: {texts} {self.finishes}; "
            f"undisturbed {undisturbed.texts} {undisturbed.finishes}"
        )


def seeds_under_way(guardian_pid: int) -> dict[int, int]:
    """Of each answer that is under way the number of its id and its seed, by the journals that the guardian keeps."""
    seeds = {}
    folder = f"/proc/{guardian_pid}/fd"
    for name in os.listdir(folder):
        with suppress(OSError, JournalError):  # it was closed meanwhile, or is new and empty
            path = f"{folder}/{name}"
            if JOURNAL not in os.readlink(path):
                continue
            journal = Journal(os.open(path, os.O_RDWR))
            try:
                identity = journal.unfinished().identity
            finally:
                journal.close()
            if identity is not None:
                seeds[identity.number] = identity.seed
    return seeds
