"""Where the name of a conversation comes from."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from slipstream.router.api.session_headers import session_in
from tests.support.router.fake_cluster import front, run

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, ""),
        ({b"session-id": b"codex"}, "codex"),
        ({b"x-session-affinity": b"opencode"}, "opencode"),
        ({b"x-session-affinity": b"b", b"x-session-id": b"a"}, "a"),
        ({b"x-session-id": b"two words"}, ""),
        ({b"x-session-id": b"x" * 513}, ""),
        ({b"x-session-id": "é".encode()}, ""),
    ],
)
def test_a_header_names_the_conversation_if_it_is_a_name(headers: dict[bytes, bytes], name: str) -> None:
    assert session_in(headers) == name


def test_the_body_comes_before_the_header_and_the_cache_key_stands_in() -> None:
    async def main() -> None:
        async with front() as site:
            cases: tuple[tuple[dict[str, str], dict[str, str], str], ...] = (
                ({}, {}, ""),
                ({}, {"x-session-id": "h"}, "h"),
                ({"prompt_cache_key": "k"}, {}, "k"),
                ({"prompt_cache_key": "k"}, {"x-session-id": "h"}, "h"),
                ({"session_id": "s", "prompt_cache_key": "k"}, {"x-session-id": "h"}, "s"),
            )
            for fields, headers, session in cases:
                body = {"model": "demo", "messages": HI, "max_tokens": 1, **fields}
                status, _, answer = await site.request("POST", CHAT, body, headers)
                assert status == 200, answer
                request = site.service.requests[-1]
                assert request.session == session
                assert request.keeps_version == (session in ("h", "s"))

    run(main)


def test_a_response_goes_on_in_the_session_of_its_conversation_unless_a_header_names_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with front(store=tmp_path) as site:

            async def session(headers: dict[str, str], **fields: str) -> tuple[str, str]:
                body = {"model": "demo", "input": "hi", "max_output_tokens": 1, **fields}
                status, _, answer = await site.request("POST", "/v1/responses", body, headers)
                assert status == 200, answer
                return site.service.requests[-1].session, orjson.loads(answer)["id"]

            _, root = await session({})
            header = {"x-session-id": "h"}
            assert (await session({}, previous_response_id=root))[0] == root
            assert (await session({}, previous_response_id=root, prompt_cache_key="k"))[0] == root
            assert (await session(header, previous_response_id=root, prompt_cache_key="k"))[0] == "h"
            assert (await session(header, previous_response_id=root, session_id="s"))[0] == "s"
            assert (await session({}, prompt_cache_key="k"))[0] == "k"

    run(main)


def test_what_a_client_asks_to_keep_is_handed_on() -> None:
    async def main() -> None:
        async with front() as site:
            for fields, pinned_s in (({}, None), ({"retention_s": 300}, 300.0)):
                status, _, answer = await site.post(CHAT, messages=HI, max_tokens=1, **fields)
                assert status == 200, answer
                retention = site.service.requests[-1].retention
                assert (retention.pinned_s if retention is not None else None) == pinned_s
            for bad in (0, -1, 1e9, "long"):
                status, _, answer = await site.post(CHAT, messages=HI, retention_s=bad)
                assert status == 400
                assert b"retention_s" in answer

    run(main)
