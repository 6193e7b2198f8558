"""Recognises host names."""

from __future__ import annotations

import ipaddress
import re

LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")  # with underscores, as in Docker's names
MAX_NAME_CHARS = 253  # RFC 1035


def is_host(text: str) -> bool:
    """Whether the text has the form of an IP address or of a host name. A name whose last part is a number is not one,
    but a mistyped address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        return len(text) <= MAX_NAME_CHARS and all(map(LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    return True
