"""`best_of`: of several outputs, those with the highest mean log-probability are the answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import TokenLogprob
from tests.support.router.fake_cluster import FakeService, FrontUnderTest, Script, front, run

MEANS = (-3.0, -1.0, -2.0, -0.5)


async def ask(site: FrontUnderTest, **fields: Any) -> dict[str, Any]:
    """The answer of a cluster whose output number i is the digit i, once or several times."""

    def logprobs(request: GenerateRequest, token_ids: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        if request.sampling.logprobs is None:
            return ()
        # Longer outputs have a lower sum, in which a mean makes no difference.
        return tuple([TokenLogprob(MEANS[request.choice % 4])] * len(token_ids))

    def script(request: GenerateRequest) -> Script:
        digit = site.tokenizer._tokenizer.encode(str(request.choice), add_special_tokens=False).ids
        return Script(digit * (1 + request.choice))

    site.service.script = script
    site.service._logprobs = logprobs  # type: ignore[method-assign]
    assert isinstance(site.service, FakeService)
    status, _, answer = await site.post("/v1/completions", **fields)
    assert status == 200, answer
    answered: dict[str, Any] = orjson.loads(answer)
    return answered


def texts_of(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def test_the_best_are_sent_best_first_and_all_tokens_count() -> None:
    async def main() -> None:
        async with front("x") as site:
            answer = await ask(site, prompt="a", best_of=4, n=2)
            assert texts_of(answer) == ["3333", "11"]
            assert answer["usage"]["completion_tokens"] == 1 + 2 + 3 + 4
            assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]

    run(main)


def test_each_prompt_has_its_own_best() -> None:
    async def main() -> None:
        async with front("x") as site:
            answer = await ask(site, prompt=["a", "b"], best_of=2)
            assert texts_of(answer) == ["11", "3333"]
            assert len(site.service.requests) == 4

    run(main)


@pytest.mark.parametrize("logprobs", [0, 2])
def test_log_probabilities_are_as_the_client_asked(logprobs: int) -> None:
    async def main() -> None:
        async with front("x") as site:
            answer = await ask(site, prompt="a", best_of=4, logprobs=logprobs)
            assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-0.5] * 4
            assert {request.sampling.logprobs for request in site.service.requests} == {logprobs}

    run(main)


def test_as_many_as_are_wanted_need_no_log_probabilities_and_may_be_streamed() -> None:
    async def main() -> None:
        async with front("x") as site:
            await ask(site, prompt="a", best_of=2, n=2)
            assert {request.sampling.logprobs for request in site.service.requests} == {None}
            assert (await site.post("/v1/completions", prompt="a", best_of=2, n=2, stream=True))[0] == 200

    run(main)
