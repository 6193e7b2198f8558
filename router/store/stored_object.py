"""What the store holds."""

from __future__ import annotations

from typing import NamedTuple


class StoredObject(NamedTuple):
    """An object. `id` is unique within its `kind`, and must be drawn by us, because a blob's file has this name.
    `owner` is the tenant ("" without keys: then all clients share everything). `parent` is the id of the object that it
    follows in a chain (`previous_response_id`; of the same kind), or that it belongs to (the conversation of an item;
    of another kind). `blob_bytes` is the size of its file, which counts for the limits. It is not given out after
    `expires_s` (seconds since the epoch; None: after `max_age_s`). What `is_pinned` is not removed to make room, nor by
    age."""

    kind: str
    id: str
    owner: str
    created_s: float
    body: bytes
    parent: str = ""
    blob_bytes: int = 0
    expires_s: float | None = None
    is_pinned: bool = False


class ObjectName(NamedTuple):
    """What an object of a known kind is found by."""

    id: str
    owner: str


class Page(NamedTuple):
    """Objects of a list in the order asked for. `has_more`: there are others behind them."""

    objects: list[StoredObject]
    has_more: bool


class StoreCounts(NamedTuple):
    """What is in the store, and how many objects have left it to make room, or by age, since it was made."""

    num_bytes: int
    by_kind: dict[str, int]  # numbers of objects
    num_evicted: int
    num_expired: int
