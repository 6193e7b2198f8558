"""Request bodies that come compressed (RFC 9110, 8.4): gzip and deflate.

A few KiB can stand for gigabytes, so no more than the largest body that is served is ever decompressed.
"""

from __future__ import annotations

import asyncio
import zlib

from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

INLINE_BYTES = 256 * 1024  # are decompressed on the event loop, in about a millisecond; the rest in a thread
ACCEPTED = (("accept-encoding", "gzip, deflate"),)
ZLIB, GZIP, RAW_DEFLATE = zlib.MAX_WBITS, 16 + zlib.MAX_WBITS, -zlib.MAX_WBITS  # `wbits` of zlib's formats
WBITS_OF = {b"gzip": GZIP, b"x-gzip": GZIP, b"deflate": ZLIB}
MAX_GZIP_MEMBERS = 64  # of one body


class TooLargeError(Exception):
    """The decoded body is larger than allowed."""


async def decode_body(request: Request, max_bytes: int) -> None:
    """Replaces a compressed body with what it stands for. Raises HttpError: 415 for another coding, 400 for bytes that
    are not in the coding, 413 for more than `max_bytes`."""
    coding = request.headers.pop(b"content-encoding").strip().lower()
    if coding in (b"identity", b"") or not request.body:
        return
    if coding not in WBITS_OF:
        raise HttpError(
            415,
            f"The body may be compressed with gzip or deflate, got {coding.decode('latin-1')[:64]!r}.",
            param="Content-Encoding",
            code="unsupported_media_type",
            headers=ACCEPTED,
        )
    try:
        try:
            request.body = decompressed(request.body, coding, min(INLINE_BYTES, max_bytes))
        except TooLargeError:
            if max_bytes <= INLINE_BYTES:
                raise
            request.body = await asyncio.to_thread(decompressed, request.body, coding, max_bytes)
    except TooLargeError:
        raise HttpError(413, f"The body is larger than {max_bytes} bytes.", code="body_too_large") from None
    except zlib.error as error:
        message = f"The body is not compressed with {coding.decode('ascii')}: {error}."
        raise HttpError(400, message, param="Content-Encoding", code="malformed_body") from None


def decompressed(data: bytes, coding: bytes, max_bytes: int) -> bytes:
    """Raises zlib.error, and TooLargeError for more than `max_bytes`."""
    wbits = WBITS_OF[coding]
    if wbits == ZLIB and not is_zlib(data):
        wbits = RAW_DEFLATE  # what many clients send, contrary to RFC 9110, 8.4.1.2
    parts: list[bytes] = []
    room = max_bytes
    for _ in range(MAX_GZIP_MEMBERS):
        decoder = zlib.decompressobj(wbits)
        part = decoder.decompress(data, room + 1)
        room -= len(part)
        if room < 0:
            raise TooLargeError
        if not decoder.eof:
            raise zlib.error("it is cut off")
        parts.append(part)
        data = decoder.unused_data
        if not data or wbits != GZIP:
            break
    if data:
        raise zlib.error("something follows its end")
    return b"".join(parts)


def is_zlib(data: bytes) -> bool:
    """Whether it begins with the header of RFC 1950."""
    return len(data) > 1 and data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
