"""Who comes into question, with the real prefix index."""

import pytest

from slipstream.router.placement.policies.shortlist import FRESH, shortlist
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.prefix.sessions import Sessions
from slipstream.router.protocol.block_hash import BlockChain, root_digest
from slipstream.router.protocol.messages import BlocksChanged
from slipstream.router.registry.credits import Charge
from slipstream.router.registry.worker_registry import WorkerRegistry
from tests.support.router.placed_workers import PAGE_TOKENS, request, worker


def packed_blocks(state, num_pages):
    chain = BlockChain(root_digest("m", ""), PAGE_TOKENS)
    chain.extend(state.prompt_ids)
    return b"".join(block.to_bytes(8, "little") for block in chain.ids[:num_pages])


@pytest.fixture
def cluster():
    registry, index = WorkerRegistry(), PrefixIndex()
    for number in range(40):
        for role in ("decode", "prefill"):
            made = worker(role, f"{role}-{number}", free=(number, 4096, number))
            registry.add(made)
            index.add(made)
    return registry, index


def by_name(registry, name):
    [found] = [one for one in registry if one.name == name]
    return found


def test_of_many_those_with_room_those_with_the_prefix_and_the_one_of_the_conversation_are_looked_at(cluster):
    registry, index = cluster
    sessions = Sessions()
    for one in registry:
        sessions.add(one)
    state = request(200, session="chat")
    index.apply(by_name(registry, "decode-0"), BlocksChanged(1, False, packed_blocks(state, 5), b""))
    sessions.note("chat", by_name(registry, "decode-1"))
    found = shortlist(state, registry, index, sessions, 8)
    names = [one.name for one in found.decodes]
    assert names == ["decode-0", "decode-1", *(f"decode-{number}" for number in range(39, 39 - FRESH, -1))]
    assert found.cached == {by_name(registry, "decode-0"): 5 * PAGE_TOKENS}
    assert {one.name for one in found.session_workers} == {"decode-1"}
    assert [one.name for one in found.prefills] == [f"prefill-{number}" for number in range(39, 39 - FRESH, -1)]


def test_what_is_only_expected_counts_where_prompts_queue_and_not_where_it_would_be_needed_at_once(cluster):
    registry, index = cluster
    state = request(200)
    decode, group = by_name(registry, "decode-7"), by_name(registry, "prefill-7")
    index.apply(decode, BlocksChanged(1, False, packed_blocks(state, 3), b""))
    for one in (decode, group):
        index.expect(one, state, 0.0)
    found = shortlist(state, registry, index, Sessions(), 8)
    assert found.cached == {decode: 3 * PAGE_TOKENS, group: 12 * PAGE_TOKENS}
    index.apply(decode, BlocksChanged(2, False, packed_blocks(state, 12)[3 * 8 :], b""))
    assert shortlist(state, registry, index, Sessions(), 8).cached[decode] == 12 * PAGE_TOKENS


def test_load_that_changes_changes_the_order(cluster):
    registry, _ = cluster
    decode = by_name(registry, "decode-39")
    assert registry.least_loaded("decode", 2)[0] is decode
    decode.ledger.spend(Charge(slots=5))
    assert [one.name for one in registry.least_loaded("decode", 6)][-2:] == ["decode-34", "decode-39"]
    registry.drain(by_name(registry, "decode-38"))
    assert registry.least_loaded("decode", 2)[0].name == "decode-37"


@pytest.mark.parametrize("num_workers", [17, 24, 32, 33, 40])
def test_of_any_number_those_with_most_room_are_looked_at_and_not_those_that_came_first(num_workers):
    registry = WorkerRegistry()
    for number in range(num_workers):
        for role in ("decode", "prefill"):
            registry.add(worker(role, f"{role}-{number}", free=(number, 4096, number)))
    found = shortlist(request(200), registry, PrefixIndex(), Sessions(), 32)
    latest = range(num_workers - 1, num_workers - 1 - FRESH, -1)
    assert [one.name for one in found.decodes] == [f"decode-{number}" for number in latest]
    assert [one.name for one in found.prefills] == [f"prefill-{number}" for number in latest]
