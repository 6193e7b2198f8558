"""Bytes that no honest client sends, or only a strange one: each gets one answer of its own at once, and no 5xx."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.router.fake_cluster import MODEL, FrontUnderTest, front, run

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SURROGATE = r'"\ud800"'
BIG = "1" + "0" * 5000
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", BIG, "0x10", ".5", "+1", "01", "true", "{}", "[]", '"1"')
NUMBERS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
COUNTS = ("n", "seed", "max_tokens", "min_tokens", "logprobs", "priority", "timeout_s", "expected_output_tokens")
TEXTS = ("prompt", "stop", "user", "cache_salt", "session_id", "guided_regex", "guided_grammar", "guided_json", "model")


def completion(**written: str) -> bytes:
    """A body in which some values are written out as they stand, valid JSON or not."""
    fields = {key: json.dumps(value) for key, value in {"model": MODEL, "prompt": "hi", "max_tokens": 4}.items()}
    return ("{" + ",".join(f'"{key}":{value}' for key, value in (fields | written).items()) + "}").encode()


def post(body: bytes, *headers: bytes, path: str = COMPLETIONS, version: str = "1.1", method: str = "POST") -> bytes:
    head = [f"{method} {path} HTTP/{version}".encode(), b"Host: x", b"Content-Length: %d" % len(body)]
    if not any(header.lower().startswith(b"content-type") for header in headers):
        head.append(b"Content-Type: application/json")
    return b"\r\n".join([*head, *headers]) + b"\r\n\r\n" + body


def chunked(chunks: bytes, version: str = "1.1") -> bytes:
    head = [
        f"POST {COMPLETIONS} HTTP/{version}",
        "Host: x",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    ]
    return "\r\n".join([*head, "", ""]).encode() + chunks


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def deep(depth: int, begin: str = "[", end: str = "]") -> str:
    return begin * depth + "1" + end * depth


WRONG_VALUES = {
    **{f"{field} is {value[:12]}": post(completion(**{field: value})) for field in NUMBERS for value in NO_NUMBERS},
    **{f"{field} is {value[:12]}": post(completion(**{field: value})) for field in COUNTS for value in NO_NUMBERS[:8]},
    **{f"{field} is half a character": post(completion(**{field: SURROGATE})) for field in TEXTS},
    "a stop of half a character": post(completion(stop=f"[{SURROGATE}]")),
    "a choice of half a character": post(completion(guided_choice=f"[{SURROGATE}]")),
    "a schema with half a character": post(completion(guided_json=f'{{"enum":[{SURROGATE}]}}')),
    "half a character as a key": post(completion(metadata=f'{{{SURROGATE}:"a"}}')),
    "a byte order mark": post(b"\xef\xbb\xbf" + completion()),
    "UTF-16": post(completion().decode().encode("utf-16")),
    "UTF-32": post(completion().decode().encode("utf-32")),
    "a zero byte in a grammar": post(completion(guided_grammar=r'"start: \"a\u0000\""')),
    "a deep unknown field": post(completion(zzz=deep(20_000))),
    "a deep schema": post(completion(guided_json=deep(20_000, '{"anyOf":[', "]}"))),
    "a deep logit_bias": post(completion(logit_bias=deep(20_000, '{"1":', "}"))),
    "a deep prompt": post(completion(prompt=deep(20_000))),
    "deep messages": post(f'{{"model":"{MODEL}","messages":{deep(20_000)}}}'.encode(), path=CHAT),
    "ten thousand prompts": post(completion(prompt=json.dumps(["a"] * 10_000))),
    "many prompts with many choices": post(completion(prompt=json.dumps(["a"] * 128), n="128")),
    "prompts in prompts": post(completion(prompt="[[1,2],[3,[4]]]")),
    "a token that is true": post(completion(prompt="[true]")),
    "a stop of a million letters": post(completion(stop=json.dumps("a" * 1_000_000))),
    "a logit_bias of all tokens": post(completion(logit_bias=json.dumps({str(i): -100 for i in range(4096)}))),
    "a logit_bias of a huge token": post(completion(logit_bias='{"%s":1}' % ("9" * 5000))),
    "a model with a header in it": post(completion(model=r'"a\r\nX: y"')),
    "a model name of a million letters": post(completion(model=json.dumps("m" * 1_000_000))),
    "forty thousand unknown fields": post(("{" + ",".join(f'"k{i}":1' for i in range(40_000)) + "}").encode()),
    "a body that is packed": post(b"\x1f\x8b\x08\x00", b"Content-Encoding: gzip"),
    "no type": post(completion(), b"Content-Type:"),
    "a form": post(completion(), b"Content-Type: multipart/form-data; boundary=x"),
    "a type of no characters": post(completion(), b"Content-Type: \xff\xfe"),
    "two types": post(completion(), b"Content-Type: application/json, text/plain"),
}
WRONG_REQUESTS = {
    **{f"{method}": post(b"", method=method) for method in ("HEAD", "PUT", "DELETE", "TRACE", "PATCH", "QUERY")},
    "a teapot": b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    "an old client without a length": post(b"", version="1.0").replace(b"Content-Length: 0\r\n", b""),
    "an old client with chunks": chunked(b"5\r\nhello\r\n0\r\n\r\n", "1.0"),
    "a version of tomorrow": post(completion(), version="9.9"),
    "a header name of 200 kB": post(completion(), b"X-" + b"a" * 200_000 + b": 1"),
    "a zero byte in a header": post(completion(), b"X: a\x00b"),
    "a header over two lines": post(completion(), b"X: a\r\n b"),
    "a space before the colon": post(completion(), b"X : a"),
    "a header without a name": post(completion(), b": a"),
    "two lengths": post(completion(), b"Content-Length: 5"),
    "a list of lengths": post(b"hello").replace(b"Length: 5", b"Length: 5, 5"),
    "a length with a sign": post(b"hello").replace(b"Length: 5", b"Length: +5"),
    "a length of 23 digits": post(b"").replace(b"Length: 0", b"Length: 99999999999999999999999"),
    "a chunk extension of 8 kB": chunked(b"5;" + b"a" * 8000 + b"\r\nhello\r\n0\r\n\r\n"),
    "a negative chunk": chunked(b"-5\r\nhello\r\n0\r\n\r\n"),
    "a path out of the house": get("/v1/models/../../etc/passwd"),
    "a path with a zero byte": get("/v1/models/%00"),
    "a path that is no text": get("/v1/models/%ff%fe"),
    "a header in a path": get("/v1/requests/%0d%0aX:/explain"),
    "an authority": get("evil:80"),
    "half a percent": get("/%"),
    "a path of 60 kB": get("/" + "a" * 60_000),
    "a number of 20 digits": get("/v1/requests?last=99999999999999999999"),
}
STRANGE_REQUESTS = {
    "an old client": post(completion(), version="1.0"),
    "an old client that stays": post(completion(), b"Connection: keep-alive", version="1.0"),
    "an old client that streams": post(completion(stream="true"), version="1.0"),
    "an old client that expects": post(completion(), b"Expect: 100-continue", version="1.0"),
    "a header name of 20 kB": post(completion(), b"X-" + b"a" * 20_000 + b": 1"),
    "a trace of nowhere": post(completion(), b"Traceparent: 00-zz-yy-01", b"Tracestate: " + b"a=b," * 2000),
    "a request id of other characters": post(completion(), b"X-Request-Id: \xff\xfe \x80"),
    "an offer of web sockets": post(completion(), b"Upgrade: websocket", b"Connection: Upgrade"),
    "five hundred closes": post(completion(), b"Connection: " + b"close," * 500),
    "sixteen stops of 512 characters": post(completion(stop=json.dumps(["\U0001f600" * 512] * 16))),
    "a thousand biases": post(completion(logit_bias=json.dumps({str(i): -100 for i in range(1000)}))),
    "zero bytes": post(completion(prompt=r'"a\u0000b"', stop=r'"\u0000"')),
    "the same key twice": post(b'{"model":"x",' + completion()[1:]),
    "an absolute URL": get("http://elsewhere/v1/models"),
}


async def status_of(site: FrontUnderTest, request: bytes) -> int:
    """Sends all of it, whatever comes back, and reads the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    try:
        writer.write(request)
        line = await reader.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        return int(line.split()[1])
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("cases", [WRONG_VALUES, WRONG_REQUESTS], ids=["values", "requests"])
def test_what_is_wrong_gets_a_4xx_and_the_next_client_is_served(cases: dict[str, bytes]) -> None:
    async def main() -> None:
        async with front("abc") as site:
            for name, request in cases.items():
                status = await status_of(site, request)
                assert 400 <= status < 500, f"{name}: {status}"
            assert await status_of(site, post(completion())) == 200

    run(main, deadline_s=60.0)


def test_what_is_only_strange_is_served() -> None:
    async def main() -> None:
        async with front("abc") as site:
            for name, request in STRANGE_REQUESTS.items():
                assert await status_of(site, request) == 200, name

    run(main, deadline_s=60.0)


def test_a_bad_request_among_pipelined_ones_ends_the_connection_after_those_before_it() -> None:
    async def main() -> None:
        async with front("abc") as site:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(post(completion()) * 3 + b"BAD\r\n\r\n" + post(completion()))
            said = await reader.read()
            writer.close()
            assert [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]] == [200, 200, 200, 400]

    run(main)
