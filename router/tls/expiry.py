"""Until when a certificate is valid."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import NamedTuple

BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
VERSION, UTC_TIME, GENERALIZED_TIME = 0xA0, 0x17, 0x18  # tags of DER
TIME_FORMS = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


class Element(NamedTuple):
    """One of DER. `end` is where the next one begins."""

    tag: int
    start: int
    end: int


def expires_at_s(pem: str) -> float | None:
    """When the first certificate in this text expires, in seconds since 1970; None if there is none that can be read.
    Python's ssl shows a certificate only to the other side of a connection, so the field is found by its place:

    Certificate > TBSCertificate > [version] serialNumber signature issuer validity(notBefore, notAfter) ...
    """
    begin = pem.find(BEGIN)
    end = pem.find(END, begin)
    if begin < 0 or end < 0:
        return None
    try:
        return _not_after_s(ssl.PEM_cert_to_DER_cert(pem[begin : end + len(END)]))
    except (ValueError, IndexError, KeyError):
        return None


def _not_after_s(der: bytes) -> float:
    """Raises ValueError, IndexError or KeyError for what is no certificate."""
    at = _element(der, _element(der, 0).start).start
    field = _element(der, at)
    if field.tag == VERSION:
        field = _element(der, field.end)
    for _ in range(3):  # serialNumber, signature, issuer
        field = _element(der, field.end)
    not_before = _element(der, field.start)
    not_after = _element(der, not_before.end)
    text = der[not_after.start : not_after.end].decode("ascii")
    time = datetime.strptime(text, TIME_FORMS[not_after.tag]).replace(tzinfo=UTC)
    if not_after.tag == UTC_TIME and time.year >= 2050:  # RFC 5280: of two digits, 50 and more are of the last century
        time = time.replace(year=time.year - 100)
    return time.timestamp()


def _element(der: bytes, at: int) -> Element:
    size, start = der[at + 1], at + 2
    if size & 0x80:
        num_bytes = size & 0x7F
        size, start = int.from_bytes(der[start : start + num_bytes], "big"), start + num_bytes
    return Element(der[at], start, start + size)
