"""What is noted of a connection is there for the process that opens its memory, as it was at the last commit."""

import errno
import mmap
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.http.failover import journal as journal_module
from slipstream.router.http.failover.journal import (
    CURRENT,
    ENTRY,
    FIRST_LOG_BYTES,
    HEADER,
    HEADERS,
    KEPT_LOG_BYTES,
    LOG,
    NOTHING,
    RESENT_BYTES,
    RING_BYTES,
    SMALL_PART_BYTES,
    AnswerPhase,
    Identity,
    Journal,
    JournalError,
    UnfinishedAnswer,
)
from slipstream.router.protocol.messages import pack_ids
from slipstream.router.protocol.model_id import ModelId


class Shared:
    """A journal, and the file by which another process would open it."""

    def __init__(self) -> None:
        self.journal, self.fd = Journal.create()

    def reopened(self) -> Journal:
        return Journal(os.dup(self.fd))


class KilledError(Exception):
    """In the midst of something."""


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_a_request_and_its_tokens_are_found_by_the_next_router(shared: Shared) -> None:
    journal = shared.journal
    journal.received(b"POST / HTTP/1.1\r\n")
    journal.received(b"\r\n")
    journal.begun()
    journal.named(Identity(7, 1_700_000_000, 9, ModelId("org/möd", "3")))
    journal.served_by("v1")
    journal.tokens(0, pack_ids([1, 2]))
    journal.tokens(1, pack_ids([5]))
    journal.sent(b"ab", AnswerPhase.STREAMING)
    journal.token(0, 3)
    journal.ended(1)
    journal.sent(b"c", AnswerPhase.STREAMING)
    found = shared.reopened()
    assert found.unfinished() == UnfinishedAnswer(
        b"POST / HTTP/1.1\r\n\r\n",
        False,
        True,
        Identity(7, 1_700_000_000, 9, ModelId("org/möd", "3")),
        "v1",
        frozenset({1}),
        {0: pack_ids([1, 2, 3]), 1: pack_ids([5])},
    )
    assert (found.phase, found.in_bytes) == (AnswerPhase.STREAMING, 19)
    assert [found.unsent(written) for written in (0, 1, 3)] == [b"abc", b"bc", b""]


def test_tokens_hold_only_with_the_bytes_that_tell_of_them(shared: Shared) -> None:
    shared.journal.tokens(0, pack_ids([1]))
    shared.journal.sent(b"one", AnswerPhase.STREAMING)
    shared.journal.tokens(0, pack_ids([2]))  # and here the router is killed
    assert shared.reopened().unfinished().tokens == {0: pack_ids([1])}


def test_a_header_that_was_half_written_does_not_count(shared: Shared) -> None:
    shared.journal.received(b"abc")
    memory = os.dup(shared.fd)
    current = os.pread(memory, 1, CURRENT)[0]
    os.pwrite(memory, b"\xff" * 64, HEADERS[1 - current])
    assert shared.reopened().in_bytes == 3


def test_a_finished_exchange_leaves_nothing_to_do(shared: Shared) -> None:
    journal = shared.journal
    journal.received(b"request")
    journal.begun()
    journal.named(Identity(1, 2, 3, ModelId("m")))
    journal.sent(b"answer", AnswerPhase.ENDED)
    assert shared.reopened().phase == AnswerPhase.ENDED
    journal.rest()
    found = shared.reopened()
    assert (found.phase, found.unfinished()) == (AnswerPhase.IDLE, NOTHING)
    assert (found.in_bytes, found.unsent(4)) == (7, b"er")  # counts go on over all exchanges


def test_a_spoiled_exchange_is_told_as_such_and_the_next_one_is_whole_again(shared: Shared) -> None:
    journal = shared.journal
    journal.received(b"first")
    journal.spoil()
    journal.received(b"second")
    assert shared.reopened().is_spoiled
    assert shared.reopened().in_bytes == 11
    journal.rest()
    journal.received(b"third")
    found = shared.reopened()
    assert not found.is_spoiled
    assert found.unfinished().request == b"third"


def test_a_large_request_makes_the_memory_larger_and_rest_gives_it_back(shared: Shared) -> None:
    large = random.Random(1).randbytes(KEPT_LOG_BYTES + 5)
    shared.journal.received(large)
    assert shared.reopened().unfinished().request == large
    shared.journal.rest()
    assert os.fstat(shared.fd).st_size == LOG + FIRST_LOG_BYTES
    shared.journal.received(b"small")
    assert shared.reopened().unfinished().request == b"small"


def test_the_memory_of_a_connection_stays_for_its_next_request_of_the_same_size(shared: Shared) -> None:
    request = bytes(2 * FIRST_LOG_BYTES)
    sizes = set()
    for _ in range(3):
        shared.journal.received(request)
        sizes.add(os.fstat(shared.fd).st_size)
        shared.journal.rest()
        sizes.add(os.fstat(shared.fd).st_size)
    assert len(sizes) == 1
    assert sizes.pop() <= LOG + KEPT_LOG_BYTES


def test_a_request_that_is_too_large_is_not_kept(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_LOG_BYTES", 4 * KEPT_LOG_BYTES)
    for _ in range(5):
        shared.journal.received(bytes(KEPT_LOG_BYTES))
    shared.journal.begun()
    found = shared.reopened()
    assert found.is_spoiled
    assert found.in_bytes == 5 * KEPT_LOG_BYTES
    assert os.fstat(shared.fd).st_size == LOG + FIRST_LOG_BYTES
    shared.journal.rest()
    shared.journal.received(b"small")
    assert shared.reopened().unfinished().request == b"small"


def test_more_than_the_ring_holds_cannot_be_sent_again(shared: Shared) -> None:
    shared.journal.sent(bytes(RESENT_BYTES + 1), AnswerPhase.STREAMING)
    assert shared.reopened().unsent(0) is None
    assert shared.reopened().unsent(1) == bytes(RESENT_BYTES)
    assert shared.reopened().unsent(RESENT_BYTES + 2) is None  # more than was ever given


@pytest.mark.parametrize("size", [SMALL_PART_BYTES, SMALL_PART_BYTES + 1, 2 * RING_BYTES])
def test_a_part_that_was_half_written_never_takes_the_place_of_what_waits(
    shared: Shared, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.journal.sent(b"a" * RESENT_BYTES, AnswerPhase.STREAMING)

    def die() -> None:
        raise KilledError

    with monkeypatch.context() as killing:
        killing.setattr(shared.journal, "commit", die)
        with pytest.raises(KilledError):
            shared.journal.sent(b"b" * size, AnswerPhase.STREAMING)
    found = shared.reopened()
    assert found.unsent(RESENT_BYTES) == b""  # a client that had taken all goes on in any case
    assert found.unsent(0) == (b"a" * RESENT_BYTES if size <= SMALL_PART_BYTES else None)
    found.outlive()
    found.sent(b"c", AnswerPhase.STREAMING)
    assert shared.reopened().unsent(RESENT_BYTES) == b"c"


def test_without_room_for_another_file_none_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(fd: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "dup", no_more)
    with pytest.raises(OSError, match="too many"):
        Journal.create()
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3 * RING_BYTES // 2), min_size=1, max_size=8), st.data())
def test_what_is_missing_is_the_end_of_what_was_sent(sizes: list[int], data: st.DataObject) -> None:
    shared, rng = Shared(), random.Random(len(sizes))
    sent = b""
    for size in sizes:
        part = rng.randbytes(size)
        shared.journal.sent(part, AnswerPhase.STREAMING)
        sent += part
    written = data.draw(st.integers(max(len(sent) - RESENT_BYTES, 0), len(sent)))
    assert shared.reopened().unsent(written) == sent[written:]


@pytest.mark.parametrize("size", [0, 100, LOG, LOG + 1000])
def test_other_memory_is_no_journal(size: int) -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, size)
    with pytest.raises(JournalError):
        Journal(fd)


def test_an_entry_that_is_not_whole_is_refused(shared: Shared) -> None:
    shared.journal.received(b"request")
    place = os.pread(shared.fd, 1, CURRENT)[0]
    header = bytearray(os.pread(shared.fd, HEADER.size, HEADERS[place]))
    header[-16:-8] = (ENTRY.size - 1).to_bytes(8, "little")  # the length of the log
    os.pwrite(shared.fd, header, HEADERS[place])
    with pytest.raises(JournalError, match="not whole"):
        shared.reopened().unfinished()


def test_entries_that_make_no_sense_are_refused(shared: Shared) -> None:
    shared.journal.received(b"request")
    os.pwrite(shared.fd, b"\x09\x00", LOG)
    with pytest.raises(JournalError):
        shared.reopened().unfinished()


def num_resident_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_a_journal_at_rest_gives_its_memory_back_and_goes_on(shared: Shared) -> None:
    journal = shared.journal
    for _ in range(4):
        journal.received(bytes(KEPT_LOG_BYTES // 8))
        journal.sent(bytes(RING_BYTES // 2 - 1), AnswerPhase.ENDED)
    journal.rest()
    assert num_resident_bytes(shared.fd) > RING_BYTES
    journal.release()
    assert num_resident_bytes(shared.fd) <= mmap.PAGESIZE
    sent = 4 * (RING_BYTES // 2 - 1)
    assert shared.reopened().unsent(sent) == b""
    journal.received(b"next")
    journal.sent(b"answer", AnswerPhase.STREAMING)
    found = shared.reopened()
    assert (found.unfinished().request, found.unsent(sent)) == (b"next", b"answer")
