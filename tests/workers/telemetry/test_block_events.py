"""What a worker tells of its prefix cache, and that the router ends up knowing exactly that."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.protocol.block_hash import pack_block_ids, unpack_block_ids
from slipstream.router.protocol.messages import (
    BlocksChanged,
    Cancel,
    EngineRequest,
    Generate,
    SamplingParams,
)
from slipstream.router.protocol.messages import pack_ids as pack
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.interface.cache_changes import CacheChanges
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.telemetry.block_events import INTERVAL_S, MAX_BLOCKS_A_MESSAGE, BlockEvents
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.router.greetings import make_hello
from tests.support.workers.fake_executor import FakeExecutor

NUM_PAGES, PAGE_TOKENS = 12, 4


class Cache:
    """A prefix cache that is only a set."""

    def __init__(self, limit: int = 100_000) -> None:
        self.changes = CacheChanges(limit)
        self.held: dict[bytes, None] = {}

    def digests(self) -> Collection[bytes]:
        return self.held.keys()

    def store(self, *names: str) -> None:
        for name in names:
            self.held[name.encode().ljust(16)] = None
            self.changes.store(name.encode().ljust(16))

    def remove(self, *names: str) -> None:
        for name in names:
            del self.held[name.encode().ljust(16)]
            self.changes.remove(name.encode().ljust(16))


def ids(*names: str) -> bytes:
    return pack_block_ids(name.encode().ljust(16) for name in names)


def told(message: BlocksChanged) -> tuple[int, bool, bytes, bytes]:
    return message.seq, message.is_snapshot, message.stored, message.removed


def test_an_empty_cache_is_not_worth_a_snapshot() -> None:
    events = BlockEvents(Cache())
    assert events.due(0.0) == ()
    assert events.next_due_s() is None


def test_changes_are_told_together_and_not_too_often() -> None:
    cache = Cache()
    events = BlockEvents(cache)
    events.due(0.0)
    cache.store("a", "b")
    assert [told(m) for m in events.due(1.0)] == [(1, False, ids("a", "b"), b"")]
    cache.store("c")
    assert events.due(1.0 + INTERVAL_S / 2) == ()
    assert events.next_due_s() == 1.0 + INTERVAL_S
    cache.remove("a")
    assert [told(m) for m in events.due(1.0 + INTERVAL_S)] == [(2, False, ids("c"), ids("a"))]


def test_what_came_and_went_in_between_is_not_told() -> None:
    cache = Cache()
    cache.store("a")
    events = BlockEvents(cache)
    events.due(0.0)
    cache.store("b")
    cache.remove("b", "a")
    cache.store("a")
    assert events.next_due_s() is None
    assert events.due(1.0) == ()


def test_a_new_connection_begins_with_a_snapshot() -> None:
    cache = Cache()
    cache.store("a")
    events = BlockEvents(cache)
    assert [told(m) for m in events.due(0.0)] == [(1, True, ids("a"), b"")]
    cache.store("b")
    events.due(1.0)
    events.start_over()
    cache.remove("a")
    assert [told(m) for m in events.due(2.0)] == [(1, True, ids("b"), b"")]


def test_a_snapshot_comes_when_it_is_asked_for_even_of_nothing() -> None:
    cache = Cache()
    events = BlockEvents(cache)
    events.due(0.0)
    cache.store("a")
    events.due(1.0)
    cache.remove("a")
    events.resync()
    assert [told(m) for m in events.due(2.0)] == [(2, True, b"", b"")]


def test_too_many_changes_to_remember_become_a_snapshot() -> None:
    cache = Cache(limit=2)
    events = BlockEvents(cache)
    events.due(0.0)
    cache.store("a", "b", "c")
    cache.remove("b")
    assert [told(m) for m in events.due(1.0)] == [(1, True, ids("a", "c"), b"")]
    cache.store("d")
    assert [told(m) for m in events.due(2.0)] == [(2, False, ids("d"), b"")]


def test_a_long_snapshot_comes_in_parts_of_which_only_the_first_begins_anew() -> None:
    cache = Cache()
    names = [str(i) for i in range(2 * MAX_BLOCKS_A_MESSAGE + 1)]
    cache.store(*names)
    parts = BlockEvents(cache).due(0.0)
    assert [(p.seq, p.is_snapshot, len(p.stored)) for p in parts] == [
        (1, True, 8 * MAX_BLOCKS_A_MESSAGE),
        (2, False, 8 * MAX_BLOCKS_A_MESSAGE),
        (3, False, 8),
    ]
    assert b"".join(p.stored for p in parts) == ids(*names)


def test_many_changes_never_show_more_pages_than_there_are() -> None:
    cache = Cache()
    events = BlockEvents(cache)
    old, new = ([f"{kind}{i}" for i in range(MAX_BLOCKS_A_MESSAGE + 5)] for kind in "xy")
    cache.store(*old)
    index, worker = PrefixIndex(), make_worker(num_pages=len(old))
    index.add(worker)
    for message in events.due(0.0):
        index.apply(worker, message)
    cache.remove(*old)
    cache.store(*new)
    for message in events.due(1.0):
        assert not index.apply(worker, message)
    assert index.held_blocks(worker) == set(unpack_block_ids(ids(*new)))


def make_worker(num_pages: int = NUM_PAGES) -> WorkerState:
    hello = make_hello(page_tokens=PAGE_TOKENS, num_pages=num_pages, max_queued_tokens=64, max_model_len=40)
    return WorkerState(hello, 0.0)


def make_request(number: int, prompt: list[int], salt: str, num_output: int) -> EngineRequest:
    sampling = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
    return EngineRequest(f"r{number}", 0, pack(prompt), b"", sampling, salt)


class RealEngine:
    def __init__(self) -> None:
        limits = EngineLimits(NUM_PAGES, PAGE_TOKENS, 40, 4, 8, 1000, 100, (), "m")
        self._engine = NativeEngine(limits, FakeExecutor(NUM_PAGES, PAGE_TOKENS, 100))
        self.cache = self._engine.prefix_cache

    def add(self, request: EngineRequest) -> None:
        self._engine.add(request)

    def step(self) -> None:
        self._engine.step()

    def abort(self, request_id: str) -> None:
        self._engine.abort((request_id, 0))


class Mock:
    def __init__(self) -> None:
        tickets = TicketIssuer(PeerId("d", 1), (TransferAddress("h", 1),), 8, 2, 2, 64)
        profile = MockProfile(page_tokens=PAGE_TOKENS, num_pages=NUM_PAGES, max_step_tokens=8, max_model_len=40)
        self._worker = MockWorker(profile, "decode", tickets, "m")
        self.cache = self._worker.engine.prefix_cache
        self._seq = 0

    def add(self, request: EngineRequest) -> None:
        self._seq += 1
        self._worker.handle(Generate(self._seq, request), 0.0)

    def step(self) -> None:
        self._worker.advance(0.0)

    def abort(self, request_id: str) -> None:
        self._worker.handle(Cancel(request_id, 0), 0.0)


REQUESTS = st.tuples(
    st.lists(st.sampled_from((20, 21)), min_size=1, max_size=22), st.sampled_from(("", "s")), st.integers(1, 12)
)
DOINGS = st.lists(
    st.one_of(REQUESTS, st.integers(0, 8), st.sampled_from(("step", "step", "tell", "tell", "lose", "anew"))),
    max_size=60,
)


@pytest.mark.parametrize("kind", [RealEngine, Mock])
@settings(max_examples=100, deadline=None)
@given(doings=DOINGS)
def test_the_index_knows_what_the_cache_holds(kind: Any, doings: list[Any]) -> None:
    """Whatever the engine does, a message is lost (a gap), or the connection is (another epoch)."""
    engine = kind()
    events = BlockEvents(engine.cache)
    index, worker = PrefixIndex(), make_worker()
    index.add(worker)
    now_s = 0.0

    def tell(*, is_lost: bool = False) -> None:
        nonlocal now_s
        now_s += INTERVAL_S
        for message in events.due(now_s):
            if not is_lost and index.apply(worker, message):
                events.resync()

    for number, doing in enumerate(doings):
        match doing:
            case (prompt, salt, num_output):
                engine.add(make_request(number, prompt, salt, num_output))
            case int():
                engine.abort(f"r{doing}")
            case "step":
                engine.step()
            case "tell" | "lose":
                tell(is_lost=doing == "lose")
            case "anew":
                index.remove(worker)
                worker = make_worker()
                index.add(worker)
                events.start_over()
    engine.add(make_request(len(doings), [1, 2, 3, 4, 5], "last", 1))  # so that a lost message is followed by another
    for _ in range(60):
        engine.step()
    for _ in range(3):
        tell()
    assert index.held_blocks(worker) == set(unpack_block_ids(pack_block_ids(engine.cache.digests())))
    index.check_integrity()
