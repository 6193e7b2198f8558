"""Hash chains and the prefix cache on their own."""

from __future__ import annotations

from array import array

import pytest

from slipstream.router.protocol import block_hash
from slipstream.router.protocol.block_hash import HashChain, root_digest
from slipstream.workers.engine.kv_cache.prefix_cache import PrefixCache

PAGE_TOKENS = 4


def chain(model: str = "m", salt: str = "") -> HashChain:
    return HashChain(root_digest(model, salt), PAGE_TOKENS)


def cache_of(tokens: array[int], pages: list[int]) -> PrefixCache:
    cache = PrefixCache()
    for at, page in enumerate(pages):
        assert cache.insert(page, chain(), tokens, at)
    return cache


def test_longest_known_prefix_is_found_page_by_page() -> None:
    tokens = array("i", range(12))
    cache = cache_of(tokens, [7, 3, 5])
    assert cache.match(chain(), tokens, 3) == [7, 3, 5]
    assert cache.match(chain(), tokens, 2) == [7, 3]
    other_end = array("i", [*range(8), 99, 99, 99, 99])
    assert cache.match(chain(), other_end, 3) == [7, 3]


def test_same_tokens_after_another_beginning_are_another_prefix() -> None:
    cache = cache_of(array("i", range(8)), [0, 1])
    assert cache.match(chain(), array("i", [9, 9, 9, 9, 4, 5, 6, 7]), 2) == []


@pytest.mark.parametrize(("model", "salt"), [("other", ""), ("m", "tenant"), ("", "m")])
def test_other_models_and_salts_never_match(model: str, salt: str) -> None:
    tokens = array("i", range(4))
    assert cache_of(tokens, [0]).match(chain(model, salt), tokens, 1) == []


def test_roots_do_not_run_into_each_other() -> None:
    assert root_digest("ab", "c") != root_digest("a", "bc")


def test_chain_grown_token_by_token_equals_chain_hashed_at_once() -> None:
    grown, tokens = chain(), array("i")
    for token in range(20):
        tokens.append(token)
        grown.extend(tokens, len(tokens) // PAGE_TOKENS)
    at_once = chain()
    at_once.extend(tokens, 5)
    assert grown.digests == at_once.digests
    assert len(set(grown.digests)) == 5


def test_collision_of_digests_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_hash, "xxh3_128_digest", lambda data: b"all the same")
    tokens = array("i", range(4))
    cache = cache_of(tokens, [0])
    assert cache.match(chain(), tokens, 1) == [0]
    assert cache.match(chain(), array("i", [5, 5, 5, 5]), 1) == []


def test_second_page_with_the_same_content_is_not_taken_in() -> None:
    tokens = array("i", range(4))
    cache = cache_of(tokens, [0])
    assert not cache.insert(1, chain(), tokens, 0)
    assert 1 not in cache


def test_idle_page_that_was_used_least_recently_is_evicted_first() -> None:
    cache = cache_of(array("i", range(12)), [0, 1, 2])
    for page in (0, 1, 2):
        cache.idle(page)
    cache.busy(0)
    cache.idle(0)
    assert [cache.evict() for _ in range(3)] == [1, 2, 0]
    assert len(cache) == 0
