"""The file `SHA256SUMS` beside the files of a model, as `sha256sum` writes it."""

from __future__ import annotations

import re

SUMS_FILE = "SHA256SUMS"
LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def read_sums(content: bytes) -> dict[str, str]:
    """The digests by the names of files. Lines of other forms do not count."""
    lines = content.decode("utf-8", "replace").splitlines()
    return {found[2]: found[1].lower() for found in map(LINE.fullmatch, lines) if found is not None}
