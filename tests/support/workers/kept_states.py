"""What the states in a prefix cache are worth."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.router.protocol.block_hash import root_digest
from slipstream.workers.engine.native_engine import NativeEngine


def kept_without_kv(engine: NativeEngine, salts: Iterable[str] = ("",)) -> list[bytes]:
    """The digests of blocks behind which a state is kept, although keys and values before it are not cached in groups
    without a window."""
    limits, cache = engine.limits, engine.prefix_cache
    if limits.state_block_tokens is not None:
        return []
    roots = {root_digest(limits.model_id, salt) for salt in salts}
    broken = []
    for kept in cache.digests():
        digest = kept
        while digest not in roots:
            pages = [cache.page_of(digest, group) for group in range(limits.windows.count(None))]
            if None in pages:
                broken.append(kept)
                break
            if not pages:
                break
            digest = cache._entries[pages[0]].parent
    return broken
