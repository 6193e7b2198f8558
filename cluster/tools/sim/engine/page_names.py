"""The names of a prompt's pages in the simulator: from the trace's blocks, without a token being hashed."""

from __future__ import annotations

from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS, Arrival
from slipstream.router.protocol.block_hash import BlockChain

PRIVATE = 1 << 62  # names of pages that are not shared begin here
PAGES_A_REQUEST = 1 << 20


class PageNames(BlockChain):
    """`ids` are for the router's index, `digests` for a worker's cache: the same names in both forms."""

    __slots__ = ("_private", "digests")

    def __init__(self, arrival: Arrival, number: int, page_tokens: int) -> None:
        super().__init__(b"", page_tokens)
        self._private = PRIVATE + number * PAGES_A_REQUEST
        a_block = BLOCK_TOKENS // page_tokens
        num_pages = arrival.input_length // page_tokens
        first = [block * a_block for block in arrival.blocks]
        ids = first if a_block == 1 else [page + at for page in first for at in range(a_block)]
        self.ids = ids[:num_pages]
        self._pad(num_pages)
        self.digests = [page.to_bytes(8, "little") for page in self.ids]

    def extend(self, packed: bytes) -> None:
        """Pages of the answer, which no other has."""
        self._pad(len(packed) // 4 // self.page_tokens)

    def _pad(self, num_pages: int) -> None:
        self.ids += [self._private + page for page in range(len(self.ids), num_pages)]
