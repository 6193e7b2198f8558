"""The file of named tokens for the admin API (`admin_api.tokens_file`): who may look, and who may change the cluster.

tokens:
  - name: alice              # stands in the history beside what is done with the token
    sha256: 5e88...d8        # of the token, which is nowhere kept
    role: operator           # or read
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from slipstream.router.access.entry_list import FileVersion, KeyFileError, parse_entries, read_entries

TokenRole = Literal["read", "operator"]
ROLES: tuple[str, ...] = get_args(TokenRole)
FIELDS = ("name", "sha256", "role")
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
RESERVED = (
    "operator",
    "driver",
    "planner",
    "watch",
    "keys_file",
)  # who the history names where there is no named token

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token's name and role. `digest` is its SHA-256."""

    name: str
    digest: bytes
    role: TokenRole

    @property
    def may_change(self) -> bool:
        return self.role == "operator"


def parse_tokens(text: str) -> list[AdminToken]:
    """The tokens in the text of a file. Raises KeyFileError that names the token and the field."""
    tokens = [_token(number, entry) for number, entry in enumerate(parse_entries(text, "tokens"))]
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for token in tokens:
        if token.name in names:
            raise KeyFileError(f"tokens: the name {token.name!r} is given twice")
        if token.digest in digests:
            raise KeyFileError(f"token {token.name!r}: sha256: the same as of token {digests[token.digest]!r}")
        names.add(token.name)
        digests[token.digest] = token.name
    return tokens


def read_tokens(path: Path) -> list[AdminToken]:
    """The tokens in a file. Raises KeyFileError if it is broken or cannot be read."""
    return read_entries(path, parse_tokens)


def _token(number: int, raw: object) -> AdminToken:
    if not isinstance(raw, dict):
        raise KeyFileError(f"tokens[{number}]: must be a mapping")
    where = f"token {raw['name']!r}" if isinstance(raw.get("name"), str) else f"tokens[{number}]"
    unknown = [str(name) for name in raw if name not in FIELDS]
    if unknown:
        raise KeyFileError(f"{where}: {unknown[0]}: unknown; known here: {', '.join(FIELDS)}")
    name, digest, role = (_text(raw, field) for field in FIELDS)
    if not NAME.fullmatch(name):
        raise KeyFileError(f"{where}: name: must be up to 64 letters, digits and ._@-, got {raw.get('name')!r}")
    if name in RESERVED:
        raise KeyFileError(f"{where}: name: {name} is the name of a part of the cluster in its history")
    if not SHA256.fullmatch(digest):
        raise KeyFileError(
            f"{where}: sha256: must be 64 hexadecimal digits in lower case, in quotes if they look like a number"
        )
    if role not in ROLES:
        raise KeyFileError(f"{where}: role: must be {' or '.join(ROLES)}, got {raw.get('role')!r}")
    return AdminToken(name, bytes.fromhex(digest), "operator" if role == "operator" else "read")


def _text(raw: dict[Any, Any], field: str) -> str:
    value = raw.get(field)
    return value if isinstance(value, str) else ""


@dataclass(slots=True)
class AdminTokens:
    """All tokens that the admin API accepts: the single one, whose holder is `operator`, and those of a file. The file
    is looked at with every call, so a removed token is refused at once; while it is broken, the tokens stay as they
    were."""

    single: str
    path: Path | None = None
    _named: list[AdminToken] = field(default_factory=list)
    _version: FileVersion | None = None

    def token_of(self, shown: str) -> AdminToken | None:
        """The token that a caller has shown; None if it is none of this cluster's."""
        self._look()
        digest = hashlib.sha256(shown.encode("utf-8", "replace")).digest()
        own = AdminToken("operator", hashlib.sha256(self.single.encode()).digest(), "operator")
        return next((token for token in (own, *self._named) if hmac.compare_digest(token.digest, digest)), None)

    def _look(self) -> None:
        if self.path is None:
            return
        try:
            version = FileVersion.of(self.path)
            if version != self._version:
                self._named = read_tokens(self.path)
                self._version = version
        except (OSError, KeyFileError) as error:
            if self._version is not None:
                self._version = None
                log.error("the tokens of the admin API stay as they were: %s", error)
