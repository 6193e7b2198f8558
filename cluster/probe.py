"""The proof that a cluster serves: a request like a client's, over HTTP, answered with a generated token."""

from __future__ import annotations

import asyncio
import json

PROBE_TOKEN = 1  # some id that every vocabulary has


class ProbeFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """The router answered, but not with a token."""


async def first_token(host: str, port: int, model: str, num_prompt_tokens: int) -> None:
    """Has one token generated after a prompt of that many tokens. Raises ProbeFailed, OSError."""
    body = json.dumps(
        {
            "model": model,
            "prompt": [PROBE_TOKEN] * num_prompt_tokens,
            "max_tokens": 2,
            "temperature": 0,
            "ignore_eos": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    status_line, _, rest = answer.partition(b"\r\n")
    parts = status_line.split()
    if len(parts) < 2 or parts[1] != b"200":
        detail = rest.partition(b"\r\n\r\n")[2][:300].decode("utf-8", "replace")
        raise ProbeFailed(f"a first request was answered with {status_line.decode('latin-1')!r}: {detail}")
