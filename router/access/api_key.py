"""What an API key allows, and how its secret is made and recognised.

Only the SHA-256 of a secret is kept. A slow hash (scrypt, argon2) protects passwords, which people choose and others
can guess. These secrets are 256 random bits, which cannot be found by trying, however fast the hash is. And the hash is
computed on the event loop for every request, so it matters that it takes 1 us instead of 50 ms.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

SECRET_PREFIX = "sk-slip-"  # lets people, and scanners for leaked secrets, recognise it
SECRET_BYTES = 32


def new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class Rates:
    """Limits, per minute and at a time; None: no limit. `max_concurrent` counts sequences, of which each choice of an
    answer is one."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key. `digest` is the SHA-256 of its secret. Its rates (see `Rates`) are for all models together; `limits`
    are further ones for single models, by their names. `max_priority` is the most urgent (lowest) priority that may be
    asked for. `models` None: all. `expires_s` is in seconds since the epoch. With `shared_cache`, the tenant shares
    cached KV with all other tenants that have `shared_cache`."""

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
    limits: Mapping[str, Rates] = field(default_factory=dict)

    @property
    def rates(self) -> Rates:
        return Rates(self.requests_per_minute, self.tokens_per_minute, self.max_concurrent)
