"""What a response in the background leaves for the next process."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.router.api.openai.responses.run_files import RunCheckpoint, RunFiles, read_events
from slipstream.router.http.failover.journal import Identity, Journal
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.store.blob_folder import BlobFolder

IDENTITY = Identity(7, 1, 2, ModelId("demo", ""))


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    folder = BlobFolder(tmp_path / "blobs", fsync=False)
    folder.make()
    return folder


def test_one_process_has_it_until_it_leaves_it(blobs: BlobFolder) -> None:
    first, second = RunFiles(blobs, "resp_1"), RunFiles(blobs, "resp_1")
    assert first.claim()
    assert not second.claim()
    second.remove()  # what it has not claimed
    first.close()
    assert second.claim()
    second.remove()
    second.close()
    assert not blobs.path("resp_1.journal").exists()


def test_tokens_count_once_they_are_noted_and_half_an_event_does_not(blobs: BlobFolder) -> None:
    first = RunFiles(blobs, "resp_1")
    checkpoint = RunCheckpoint(first.open(keeps_events=True), IDENTITY)
    assert checkpoint.resumed(0) is None
    checkpoint.got(0, [(5, None), (6, None)], "v1")
    checkpoint.got(0, [(7, None)], "v1")
    first.add_events(b"data: a\n\ndata: b\n\ndata: hal")
    second = RunFiles(blobs, "resp_1")  # the first was killed
    resumed = RunCheckpoint(second.open(keeps_events=True), IDENTITY).resumed(0)
    assert resumed is not None
    assert (list(unpack_ids(resumed.output_ids)), resumed.version) == ([5, 6, 7], "v1")
    assert second.num_events == 2
    second.add_events(b"data: c\n\n")
    assert read_events(blobs, "resp_1", 9) == b"data: b\n\ndata: c\n\n"
    assert read_events(blobs, "resp_2", 0) == b""
    for files in (first, second):
        files.close()


def test_lives_without_a_token_count_unless_they_end_in_order(blobs: BlobFolder) -> None:
    def lives(ends_in_order: bool) -> int:
        files = RunFiles(blobs, "resp_1")
        num_lives = files.open(keeps_events=False).num_lives
        if ends_in_order:
            files.close()
        return num_lives

    assert [lives(False), lives(False), lives(True), lives(False)] == [1, 2, 3, 1]
    journal = Journal.in_file(blobs.path("resp_1.journal"))
    RunCheckpoint(journal, IDENTITY).got(0, [(5, None)], "")
    journal.close()
    assert lives(True) == 1


def test_a_torn_journal_begins_anew(blobs: BlobFolder) -> None:
    blobs.path("resp_1.journal").write_bytes(b"no journal")
    files = RunFiles(blobs, "resp_1")
    assert RunCheckpoint(files.open(keeps_events=False), IDENTITY).resumed(0) is None
    files.close()
