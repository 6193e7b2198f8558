"""A request for more output than there is room for gets what there is room for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipstream.router.config.router_config import ApiConfig
from tests.support.router.fake_cluster import MAX_MODEL_LEN, front, run

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
HEADER = "x-slipstream-max-tokens"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_output_is_clamped_to_the_room_and_the_header_says_so(field: str, stream: bool) -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, headers, answer = await site.post(CHAT, messages=HI, stream=stream, **{field: 32_000})
            assert status == 200, answer
            (request,) = site.service.requests
            room = MAX_MODEL_LEN - len(request.prompt_ids) // 4
            assert request.sampling.max_tokens == room
            assert headers[HEADER] == str(room)
            status, headers, _ = await site.post(CHAT, messages=HI, stream=stream, **{field: room})
            assert (status, HEADER in headers) == (200, False)
            page = (await site.request("GET", "/metrics"))[2]
            assert b'slipstream:clamped_requests_total{model_name="demo"} 1.0' in page

    run(main)


def test_each_of_several_prompts_has_its_own_room_and_the_header_the_least() -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, headers, answer = await site.post(COMPLETIONS, prompt=[[5] * 500, [5] * 10], max_tokens=20)
            assert status == 200, answer
            assert [request.sampling.max_tokens for request in site.service.requests] == [12, 20]
            assert headers[HEADER] == "12"

    run(main)


@pytest.mark.parametrize("overlong", ["clamp", "refuse"])
def test_a_prompt_that_leaves_no_room_is_a_400_with_figures(overlong: Any) -> None:
    async def main() -> None:
        async with front("abc", api=ApiConfig(overlong=overlong)) as site:
            status, _, answer = await site.post(COMPLETIONS, prompt=[5] * MAX_MODEL_LEN, max_tokens=32_000)
            error = orjson.loads(answer)["error"]
            assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
            assert error["message"].count(str(MAX_MODEL_LEN)) == 2
            assert ("32000" in error["message"]) == (overlong == "refuse")

    run(main)


def test_more_tokens_than_there_is_room_for_cannot_be_required() -> None:
    async def main() -> None:
        async with front("abc") as site:
            status, _, answer = await site.post(COMPLETIONS, prompt=[5] * 500, max_tokens=100, min_tokens=50)
            error = orjson.loads(answer)["error"]
            assert (status, error["param"]) == (400, "min_tokens")
            assert "12" in error["message"]

    run(main)
