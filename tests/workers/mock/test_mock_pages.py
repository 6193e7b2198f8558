"""The pages that a mock worker pretends to have."""

from array import array

from slipstream.router.protocol.block_hash import HashChain, root_digest
from slipstream.workers.mock.mock_pages import MockPages


def chain(first_token: int, num_pages: int) -> HashChain:
    found = HashChain(root_digest("m", ""), 1)
    found.extend(array("i", range(first_token, first_token + num_pages)), num_pages)
    return found


def test_after_more_was_leased_than_there_is_no_more_pages_stay_known_than_there_are():
    pages = MockPages(num_pages=4)
    early = pages.take(chain(0, 2), 2, max_shared=0)
    late = pages.take(chain(10, 3), 2, max_shared=0)
    pages.remember(early, 2)
    pages.remember(late, 2)
    pages.grow(late)  # overdrawn: there were none left
    pages.give_back(early)
    pages.remember(late, 3)
    assert len(pages.digests()) <= 4
    stored, removed = pages.changes.take()
    assert len(stored) - len(removed) <= 4
