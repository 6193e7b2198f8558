"""What an API key allows, and how its secret is made and recognised.

Only the SHA-256 of a secret is kept. A slow hash (scrypt, argon2) protects passwords, which people choose and which can
be guessed; these secrets are 256 random bits, so nobody will ever find one by trying hashes, however fast they are.
And the hash has to be computed for every request, beside the event loop's other work: 1 us instead of 50 ms.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

SECRET_PREFIX = "sk-slip-"  # lets people and scanners of repositories see what it is
SECRET_BYTES = 32


def new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`digest` is the SHA-256 of the secret. Rates are per minute, None without a limit. `max_concurrent` counts
    sequences: each choice of an answer is one. `max_priority` is the most urgent (lowest) priority that may be asked
    for. `models` None: all. `expires_s` is in seconds since the epoch. With `shared_cache` the tenant's prompts may
    find the KV of other tenants that share theirs."""

    name: str
    digest: bytes
    tenant: str
    weight: float = 1.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrent: int | None = None
    max_priority: int = 0
    models: frozenset[str] | None = None
    admin: bool = False
    expires_s: float | None = None
    shared_cache: bool = False
