"""Request bodies that come compressed."""

from __future__ import annotations

import gzip
import zlib

import orjson
import pytest

from slipstream.router.http import body_coding
from slipstream.router.http.body_coding import INLINE_BYTES
from tests.support.router.fake_cluster import HTTP, MODEL, front, run

COMPLETIONS = "/v1/completions"
BODY = orjson.dumps({"model": MODEL, "prompt": "a"})
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
LONG = BODY + b" " * (INLINE_BYTES + 1)  # decompressed in a thread


def zipped(data: bytes) -> bytes:
    """Without the time, which would be part of the names of tests: several processes must collect the same ones."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", zipped(BODY)),
        ("x-gzip", zipped(BODY)),
        (" GZip ", zipped(BODY[:9]) + zipped(BODY[9:])),
        ("deflate", zlib.compress(BODY)),
        ("deflate", RAW.compress(BODY) + RAW.flush()),
        ("gzip", zipped(LONG)),
        ("Identity", BODY),
    ],
)
def test_a_compressed_body_is_served_like_any_other(coding: str, body: bytes) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.request("POST", COMPLETIONS, body, {"Content-Encoding": coding})
            assert status == 200, answer
            assert orjson.loads(answer)["choices"][0]["text"] == "abc"

    run(main)


@pytest.mark.parametrize(
    ("coding", "body", "status", "words"),
    [
        ("br", BODY, 415, "gzip or deflate, got 'br'"),
        ("gzip, gzip", zipped(zipped(BODY)), 415, "got 'gzip, gzip'"),
        ("gzip", BODY, 400, "not compressed with gzip"),
        ("gzip", zipped(BODY)[:-9], 400, "cut off"),
        ("gzip", zipped(BODY) + b"more", 400, "not compressed with gzip"),
        ("deflate", zlib.compress(BODY) + b"more", 400, "something follows its end"),
        ("gzip", zipped(b"") * 100, 400, "something follows its end"),
    ],
)
def test_a_body_that_is_not_in_its_coding_is_refused_in_words(
    coding: str, body: bytes, status: int, words: str
) -> None:
    async def main() -> None:
        async with front("abc") as site:
            got, headers, answer = await site.request("POST", COMPLETIONS, body, {"Content-Encoding": coding})
            error = orjson.loads(answer)["error"]
            assert (got, error["param"], words in error["message"]) == (status, "Content-Encoding", True), answer
            assert headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)

    run(main)


def test_a_body_that_grows_beyond_the_largest_is_refused_without_being_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a bomb of 100 MiB, in 100 KiB, no more than the largest body and a byte is ever made."""
    limits: list[int] = []
    decompressed = body_coding.decompressed

    def noting(data: bytes, coding: bytes, max_bytes: int) -> bytes:
        limits.append(max_bytes)
        return decompressed(data, coding, max_bytes)

    monkeypatch.setattr(body_coding, "decompressed", noting)

    async def main() -> None:
        async with front("abc") as site:
            bomb = gzip.compress(bytes(100 << 20), 1)
            status, _, answer = await site.request("POST", COMPLETIONS, bomb, {"Content-Encoding": "gzip"})
            assert (status, orjson.loads(answer)["error"]["code"]) == (413, "body_too_large")
            assert limits == [INLINE_BYTES, HTTP.max_body_mib << 20]

    run(main)


def test_options_which_needs_no_key_does_not_unpack_a_body() -> None:
    async def main() -> None:
        async with front("abc") as site:
            bomb = gzip.compress(bytes(100 << 20), 1)
            assert (await site.request("OPTIONS", COMPLETIONS, bomb, {"Content-Encoding": "gzip"}))[0] == 204

    run(main)
