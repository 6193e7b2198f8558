"""Decides by its first message whether a worker may join. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable

from slipstream.router.protocol.messages import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, Hello

MAX_NAMES = 8  # of models in a sentence


class UnknownModel(str):
    """The reason to refuse a worker of a model that the router does not serve, but may serve later."""


def why_refused(hello: Hello, token: str, models: Collection[str], connected: Iterable[Hello]) -> str | None:
    """Why a worker cannot join a router with this secret token and these models; None if it can. `connected` are the
    workers of its model, and the one that has its name, of any model."""
    if not hmac.compare_digest(hello.token.encode(), token.encode()):
        return "wrong token"
    if (reason := _protocol_mismatch(hello)) is not None:
        return reason
    if hello.model not in models:
        return UnknownModel(f"model {hello.model!r}, this router serves {_spell_names(models)}")
    return _invalid_field(hello) or next(filter(None, (_conflict(hello, other) for other in connected)), None)


def _spell_names(models: Collection[str]) -> str:
    shown = ", ".join(map(repr, sorted(models)[:MAX_NAMES]))
    more = f" and {len(models) - MAX_NAMES} more" if len(models) > MAX_NAMES else ""
    return f"{shown}{more}" if models else "no model"


def _protocol_mismatch(hello: Hello) -> str | None:
    """Why the two cannot understand each other: each understands a range of versions, and these must overlap."""
    oldest = hello.oldest_version or hello.version
    if oldest <= PROTOCOL_VERSION and hello.version >= OLDEST_PROTOCOL_VERSION:
        return None
    theirs = _spell_range(oldest, hello.version)
    ours = _spell_range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
    of_worker = f" (Slipstream {hello.build.slipstream})" if hello.build.slipstream else ""
    return f"worker {hello.worker.name}{of_worker} speaks version {theirs} of the protocol, this router {ours}"


def _spell_range(oldest: int, newest: int) -> str:
    return f"{newest}" if oldest >= newest else f"{oldest} to {newest}"


def _invalid_field(hello: Hello) -> str | None:
    """What about the worker itself makes no sense."""
    if not hello.worker.name:
        return "worker.name is empty"
    for field, value in (
        ("tp", hello.tp),
        ("page_tokens", hello.page_tokens),
        ("num_pages", hello.num_pages),
        ("max_slots", hello.max_slots),
        ("max_queued_tokens", hello.max_queued_tokens),
        ("max_model_len", hello.max_model_len),
    ):
        if value < 1:
            return f"{field} must be at least 1, got {value}"
    if hello.block_tokens < 0:
        return f"block_tokens must not be negative, got {hello.block_tokens}"
    if min(hello.group_pages, default=0) < 0:
        return f"group_pages must not be negative, got {hello.group_pages}"
    if hello.state_pages < 0:
        return f"state_pages must not be negative, got {hello.state_pages}"
    if len(hello.addresses) != hello.tp:
        return f"{len(hello.addresses)} transfer addresses for tp {hello.tp}"
    return None


def _conflict(hello: Hello, other: Hello) -> str | None:
    """Why a greeting conflicts with a connected worker."""
    peer = other.worker
    if peer.name != hello.worker.name:
        compared = [("page_tokens", hello.page_tokens, other.page_tokens)]
        if hello.prefix_caching and other.prefix_caching:  # others report no blocks
            compared.append(("block_tokens", hello.cached_block_tokens, other.cached_block_tokens))
        for field, ours, theirs in compared:
            if ours != theirs:
                return f"{field} {ours}, but {peer.name} has {theirs}"
        return None
    # The same process may have to repeat its hello; another process must have a later epoch.
    is_newer = hello.worker.epoch > peer.epoch
    is_repeat = (hello.worker.epoch, hello.pid) == (peer.epoch, other.pid)
    if is_newer or is_repeat:
        return None
    return f"{peer.name} is connected with epoch {peer.epoch}, not older than {hello.worker.epoch}"
