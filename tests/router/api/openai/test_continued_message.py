"""An answer can go on with the last message of the assistant: vLLM's `continue_final_message`."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipstream.router.protocol.messages import unpack_ids
from tests.support.router.fake_cluster import front, run

CHAT = "/v1/chat/completions"
BEGUN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]


def test_the_prompt_ends_with_its_text_and_nothing_ends_the_turn() -> None:
    async def main() -> None:
        async with front("abc") as site:
            for more in ({}, {"add_generation_prompt": False}):
                status, _, _ = await site.post(CHAT, messages=BEGUN, continue_final_message=True, **more)
                assert status == 200
                token_ids = list(unpack_ids(site.service.requests[-1].prompt_ids))
                (text,) = await site.tokenizer.decode([token_ids], skip_special_tokens=False)
                assert text.endswith("<|user|>hi<|end|><|assistant|>Well,")

    run(main)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True, "messages": BEGUN[:1]}, "continue_final_message"),
        (
            {"continue_final_message": True, "messages": [BEGUN[0], BEGUN[1] | {"content": None}]},
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_be_continued_is_named(fields: dict[str, Any], param: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, data = await site.post(CHAT, **{"messages": BEGUN, **fields})
            assert (status, orjson.loads(data)["error"]["param"]) == (400, param)

    run(main)
