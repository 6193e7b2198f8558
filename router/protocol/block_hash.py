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
SEGMENT_PAGES = 128
MAX_SEGMENTS = 65_536  # of 2,048 tokens each with pages of 16: 80 MiB at most


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


class KnownSegments:
    """The block ids of segments of `SEGMENT_PAGES` pages: of the turns of a conversation, all but the end is hashed
    once, and then looked up by a digest of the whole segment. Bounded by the number of segments; what is in use stays,
    as in `text.prompt_memory`."""

    def __init__(self, max_segments: int = MAX_SEGMENTS) -> None:
        self._half = max_segments // 2
        self._young: dict[bytes, tuple[bytes, array[int]]] = {}
        self._old: dict[bytes, tuple[bytes, array[int]]] = {}

    def of(self, parent: bytes, packed: bytes, page_bytes: int) -> tuple[bytes, array[int]]:
        """The last digest and the ids of the segment `packed` behind the page with the digest `parent`."""
        key = xxh3_128_digest(parent + packed)
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key) or hash_blocks(parent, packed, page_bytes)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[key] = found
        return found


class BlockChain:
    """The block ids of the full pages of a request's tokens, for lookups only. Costs about 0.15 us per page, and a
    tenth of that for `known` segments."""

    __slots__ = ("_known", "_last", "ids", "page_tokens")

    def __init__(self, root: bytes, page_tokens: int, known: KnownSegments | None = None) -> None:
        self.page_tokens = page_tokens
        self.ids: list[int] = []
        self._last = root
        self._known = known

    def extend(self, packed: bytes) -> None:
        """Add the full pages of `packed` (the whole sequence as packed int32) that are not known yet."""
        size = self.page_tokens * 4
        end = len(packed) - len(packed) % size
        at = len(self.ids) * size
        if self._known is not None and at % (step := size * SEGMENT_PAGES) == 0:
            for begin in range(at, end - step + 1, step):
                self._last, ids = self._known.of(self._last, packed[begin : begin + step], size)
                self.ids += ids
                at = begin + step
        if at < end:
            self._last, ids = hash_blocks(self._last, packed[at:end], size)
            self.ids += ids


def hash_blocks(parent: bytes, packed: bytes, page_bytes: int) -> tuple[bytes, array[int]]:
    """The last digest of the pages of `packed`, and the ids of all of them."""
    last, digests = parent, []
    for at in range(0, len(packed), page_bytes):
        last = xxh3_128_digest(last + packed[at : at + page_bytes])
        digests.append(last)
    return last, array("Q", b"".join(digests))[::2]  # the first half of each
