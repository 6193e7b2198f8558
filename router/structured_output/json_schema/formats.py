"""Values of `format` that are enforced. By the specification an unknown format is an annotation, and asks for nothing.

Dates and times are those that exist. llguidance's own expressions know neither leap years nor that Python has no year
0.
"""

from __future__ import annotations

# Those that llguidance knows, and that need no stricter form.
OF_THE_LIBRARY = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri"})

_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_HEX = "[0-9a-fA-F]"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"


def _uuid(version: str) -> str:
    return rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


PATTERNS = {
    "date": _DATE,
    "date-time": rf"{_DATE}T{_TIME}",
    "time": _TIME,
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    **{f"uuid{version}": _uuid(str(version)) for version in range(1, 9)},
    "base64": _BASE64,
    "byte": _BASE64,
    "base64url": _BASE64.replace("+/", "_-").replace("A-Za-z0-9_-", "A-Za-z0-9_\\-"),
}


def pattern_of(name: str) -> str | None:
    """The pattern of whole texts of a format; None if it is the library's or asks for nothing."""
    pattern = PATTERNS.get(name)
    return None if pattern is None else f"^(?:{pattern})$"
