"""A file as OpenAI describes it, and as the store keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

from slipstream.router.store.stored_object import StoredObject

KIND = "file"

Purpose = Literal["batch", "batch_output"]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the store keeps of a file beside its bytes."""

    filename: str
    purpose: Purpose


def new_file(
    file_id: str, owner: str, created_s: int, facts: FileFacts, expires_s: float | None = None, num_bytes: int = 0
) -> StoredObject:
    """The object of a file."""
    body = orjson.dumps(asdict(facts))
    return StoredObject(KIND, file_id, owner, created_s, body, blob_bytes=num_bytes, expires_s=expires_s)


def facts_of(stored: StoredObject) -> FileFacts:
    return FileFacts(**orjson.loads(stored.body))


def shown(stored: StoredObject) -> dict[str, Any]:
    """OpenAI's file object."""
    facts = facts_of(stored)
    return {
        "id": stored.id,
        "object": "file",
        "bytes": stored.blob_bytes,
        "created_at": int(stored.created_s),
        "expires_at": int(stored.expires_s) if stored.expires_s is not None else None,
        "filename": facts.filename,
        "purpose": facts.purpose,
        "status": "processed",
        "status_details": None,
    }
