"""The names of full pages of tokens, which the router and the workers compute in the same way.

The name of a full page is a digest that chains over everything before it:

    root      = xxh3_128(model | salt)
    digest(0) = xxh3_128(root      | tokens of page 0)
    digest(1) = xxh3_128(digest(0) | tokens of page 1) ...

So equal digests mean equal prefixes of the same model with the same salt. `model` is the served name together with its
version (`model_key`); it is the same at the router and at all workers of that version, whatever directory or dtype a
pool loads it from.

In messages, a page is named by the first eight bytes of its digest, its block id. If two prefixes happen to share an
id, the router makes a wrong guess, and nothing worse: what a worker serves is decided by whole digests and tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache

from xxhash import xxh3_128_digest

ID_BYTES = 8
MAX_ROOTS = 1024  # of models and salts that are remembered


def model_key(model: str, version: str) -> str:
    """The string that distinguishes the KV of one version of a model from that of others."""
    return f"{model}@{version}" if version else model


@lru_cache(maxsize=MAX_ROOTS)
def root_digest(model_id: str, cache_salt: str) -> bytes:
    """The digest that the first page chains to. It covers the lengths, so that ("ab", "c") and ("a", "bc") differ."""
    model, salt = model_id.encode(), cache_salt.encode()
    digest: bytes = xxh3_128_digest(b"%d:%b%d:%b" % (len(model), model, len(salt), salt))
    return digest


def pack_block_ids(digests: Iterable[bytes]) -> bytes:
    """Block ids in the form in which they are sent."""
    return b"".join([digest[:ID_BYTES] for digest in digests])


def unpack_block_ids(packed: bytes) -> array[int]:
    """The block ids as numbers. Raises ValueError for a length that is not a multiple of eight bytes."""
    ids = array("Q")
    ids.frombytes(packed)
    return ids


class HashChain:
    """Digests of the full pages of one growing token sequence; each page is hashed once."""

    __slots__ = ("digests", "page_bytes", "root")

    def __init__(self, root: bytes, page_tokens: int) -> None:
        self.root = root
        self.digests: list[bytes] = []
        self.page_bytes = page_tokens * 4  # of int32 token ids

    def extend(self, tokens: array[int], num_pages: int) -> None:
        """Continue until `num_pages` pages are hashed. `tokens` is the whole sequence as int32."""
        first, size = len(self.digests), self.page_bytes
        last = self.parent(first)
        view = memoryview(tokens).cast("B")
        for start in range(first * size, num_pages * size, size):
            last = xxh3_128_digest(last + view[start : start + size])
            self.digests.append(last)

    def parent(self, at: int) -> bytes:
        return self.digests[at - 1] if at else self.root


class BlockChain:
    """The block ids of the full pages of a request's tokens, for lookups only. Costs about 0.15 us per page."""

    __slots__ = ("_last", "ids", "page_tokens")

    def __init__(self, root: bytes, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.ids: list[int] = []
        self._last = root

    def extend(self, packed: bytes) -> None:
        """Add the full pages of `packed` (the whole sequence as packed int32) that are not known yet."""
        size = self.page_tokens * 4
        last, digests = self._last, []
        for at in range(len(self.ids) * size, len(packed) - size + 1, size):
            last = xxh3_128_digest(last + packed[at : at + size])
            digests.append(last)
        self._last = last
        self.ids += array("Q", b"".join(digests))[::2]  # the first half of each
