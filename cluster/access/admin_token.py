"""The secret that callers of the admin API must present."""

from __future__ import annotations

import secrets
from pathlib import Path

from slipstream.cluster.config.cluster_config import AdminApiConfig

MIN_TOKEN_CHARS = 16


def read_token(config: AdminApiConfig) -> str:
    """The token from the configured file, or a random one. Raises ValueError."""
    if config.token_file is None:
        return secrets.token_urlsafe(32)
    try:
        token = Path(config.token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII text"
        raise ValueError(f"{config.token_file}: {reason}") from error
    if len(token) < MIN_TOKEN_CHARS or any(char.isspace() for char in token):
        raise ValueError(f"{config.token_file}: a token is one word of at least {MIN_TOKEN_CHARS} characters")
    return token
