"""What restricts the tokens of an output, from the body to the parameters that workers get."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slipstream.router.protocol.messages import ProcessorCall, SamplingParams, pack_ids
from slipstream.router.registry.worker_abilities import WorkerAbilities
from tests.support.router.fake_cluster import FrontUnderTest, front, run

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def params_of(site: FrontUnderTest, path: str = COMPLETIONS, **fields: Any) -> SamplingParams:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    status, _, answer = await site.post(path, **prompt, **fields)
    assert status == 200, answer
    return site.service.requests[-1].sampling


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bad_word_is_forbidden_at_the_beginning_and_behind_a_space(path: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            params = await params_of(site, path, bad_words=["return", " self", "return"])
            encode = site.tokenizer._tokenizer.encode
            texts = ("return", " return", "self", " self")
            assert params.bad_words == tuple(tuple(encode(text, add_special_tokens=False).ids) for text in texts)
            assert any(len(word) == 1 for word in params.bad_words)
            params = await params_of(site, path, bad_words=["\n"])
            assert params.bad_words[0] == tuple(encode("\n", add_special_tokens=False).ids)

    run(main)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_allowed_tokens_are_sent_packed_and_once(path: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            assert (await params_of(site, path, allowed_token_ids=[7, 5, 7])).allowed_token_ids == pack_ids([5, 7])
            assert not (await params_of(site, path, bad_words=[], logits_processors=[])).restrictions

    run(main)


def test_logits_processors_are_chosen_by_name_with_arguments() -> None:
    async def main() -> None:
        async with front("abc") as site:
            site.service.abilities = WorkerAbilities(True, (), ("even", "boost"))
            chosen: list[Any] = [
                "even",
                {"name": "boost", "args": {"by": 2}},
                {"qualname": "boost", "kwargs": {"by": 3}},
            ]
            params = await params_of(site, logits_processors=chosen)
            assert params.logits_processors == (
                ProcessorCall("even"),
                ProcessorCall("boost", '{"by":2}'),
                ProcessorCall("boost", '{"by":3}'),
            )

    run(main)


@pytest.mark.parametrize("chosen", ["package.module.function", {"qualname": "package.module.function"}])
def test_a_processor_that_is_not_registered_is_refused_with_those_that_are(chosen: Any) -> None:
    async def main() -> None:
        async with front("abc") as site:
            site.service.abilities = WorkerAbilities(True, (), ("boost", "even"))
            status, _, answer = await site.post(COMPLETIONS, prompt="hi", logits_processors=[chosen])
            error = orjson.loads(answer)["error"]
            assert (status, error["param"]) == (400, "logits_processors")
            assert "'package.module.function' is not registered; registered: 'boost', 'even'." in error["message"]
            assert "engine.logits_processors" in error["message"]

    run(main)


def test_while_no_worker_is_connected_the_worker_to_come_checks_the_name() -> None:
    async def main() -> None:
        async with front("abc") as site:
            params = await params_of(site, logits_processors=["even"])
            assert params.logits_processors == (ProcessorCall("even"),)

    run(main)
