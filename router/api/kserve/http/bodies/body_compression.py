"""Compressed bodies of the tensor API, in both directions: gzip and deflate, with Triton's refusals."""

from __future__ import annotations

import asyncio
import zlib

from slipstream.router.http.body_coding import GZIP, INLINE_BYTES, ZLIB, TooLargeError, decompressed
from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.infer_error import InferError

CODINGS = {"gzip": GZIP, "deflate": ZLIB}
IDENTITY = "identity"
LEVEL = 1  # tensors of floats hardly shrink with a higher one
ACCEPTED = (("accept-encoding", "gzip, deflate"),)


async def decoded(body: memoryview, coding: str | None, max_bytes: int) -> memoryview:
    """What a body stands for. Raises HttpError 501 for another coding, InferError for what is no such data or more
    than `max_bytes`."""
    if coding is None or coding == IDENTITY:
        return body
    if coding not in CODINGS:
        raise HttpError(501, "Unsupported compression type", headers=ACCEPTED)
    try:
        if len(body) <= INLINE_BYTES // 8:
            return memoryview(decompressed(bytes(body), coding.encode(), max_bytes))
        return memoryview(await asyncio.to_thread(decompressed, bytes(body), coding.encode(), max_bytes))
    except TooLargeError:
        raise InferError(
            f"decompressed request of more than {max_bytes} bytes exceeds the maximum allowed input size. Use"
            " --http-max-input-size to increase the limit."
        ) from None
    except zlib.error as error:
        raise InferError(f"failed to decompress the request body: {error}") from error


def coding_of_answer(accepted: str) -> str:
    """The coding with the highest weight in an Accept-Encoding header, of several the first."""
    best, best_weight = IDENTITY, 0.0
    for one in accepted.split(","):
        name, _, parameter = one.strip().partition(";q=")
        try:
            weight = float(parameter) if parameter else 1.0
        except ValueError:
            continue
        if (name in CODINGS or name == IDENTITY) and weight > best_weight:
            best, best_weight = name, weight
    return best


async def encoded(parts: list[bytes | memoryview], coding: str) -> bytes:
    if sum([len(part) for part in parts]) <= INLINE_BYTES // 8:
        return compressed(parts, coding)
    return await asyncio.to_thread(compressed, parts, coding)


def compressed(parts: list[bytes | memoryview], coding: str) -> bytes:
    encoder = zlib.compressobj(LEVEL, wbits=CODINGS[coding])
    return b"".join([*[encoder.compress(part) for part in parts], encoder.flush()])
