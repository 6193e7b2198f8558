"""Token ids of texts and conversations, and back, at vLLM's endpoints."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import MAX_MODEL_LEN, MODEL, FrontUnderTest, front, run

HI = [{"role": "user", "content": "hi"}]


async def ask(site: FrontUnderTest, path: str, **fields: object) -> tuple[int, dict[str, Any]]:
    status, _, body = await site.request("POST", path, fields)
    return status, orjson.loads(body)


def test_the_ids_of_a_text_are_those_that_a_completion_begins_with() -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, reply = await ask(site, "/tokenize", model=MODEL, prompt="def f(x):")
            await site.post("/v1/completions", prompt="def f(x):")
            expected = list(unpack_ids(site.service.requests[0].prompt_ids))
            assert status == 200
            assert reply == {
                "count": len(expected),
                "max_model_len": MAX_MODEL_LEN,
                "tokens": expected,
                "token_strs": None,
            }

    run(main)


def test_the_ids_of_a_conversation_are_those_that_a_chat_begins_with() -> None:
    async def main() -> None:
        async with front("abc") as site:
            _, reply = await ask(site, "/tokenize", messages=HI, add_generation_prompt=True)
            await site.post("/v1/chat/completions", messages=HI)
            assert reply["tokens"] == list(unpack_ids(site.service.requests[0].prompt_ids))

    run(main)


def test_a_start_token_is_left_out_if_asked_and_ids_come_back_as_text_with_control_tokens() -> None:
    async def main() -> None:
        async with front("abc") as site:
            _, with_start = await ask(site, "/tokenize", prompt="wörld 🙂<|end|>", return_token_strs=True)
            _, without = await ask(site, "/tokenize", prompt="wörld 🙂<|end|>", add_special_tokens=False)
            assert with_start["tokens"][1:] == without["tokens"]
            assert len(with_start["token_strs"]) == with_start["count"]
            assert with_start["token_strs"][-1] == "<|end|>"
            assert await ask(site, "/detokenize", tokens=without["tokens"]) == (200, {"prompt": "wörld 🙂<|end|>"})
            assert await ask(site, "/detokenize", tokens=[]) == (200, {"prompt": ""})

    run(main)


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": HI, "tools": [{}]}, 400, "tools.0.type"),
        ("/tokenize", {"prompt": "x" * 1_000_000}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [999999]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
def test_what_is_wrong_is_named(path: str, fields: dict[str, object], status: int, param: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            got, answer = await ask(site, path, **fields)
            assert (got, answer["error"]["param"]) == (status, param), answer

    run(main)
