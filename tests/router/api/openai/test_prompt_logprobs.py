"""What answers say of tokens: log-probabilities of the prompt in OpenAI's and in vLLM's form, ids in and out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from slipstream.router.api.generation import token_requests
from slipstream.router.protocol.messages import unpack_ids
from slipstream.workers.mock.mock_scores import scored_token
from tests.support.router.fake_cluster import MOCK_VOCABULARY, MODEL_DIR, FrontUnderTest, events_of, front, run

OUTPUT = "Hello wörld 🙂, this is it."
PROMPT = "The wörld 🙂 is round."
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Say it."}]


def with_front(main: Callable[[FrontUnderTest], Awaitable[None]], **settings: Any) -> None:
    async def serve() -> None:
        async with front(OUTPUT, **settings) as under_test:
            await main(under_test)

    run(serve)


async def answer(under_test: FrontUnderTest, path: str, **fields: Any) -> dict[str, Any]:
    status, _, body = await under_test.post(path, **fields)
    assert status == 200, body
    found: dict[str, Any] = orjson.loads(body)
    return found


def prompts_of(under_test: FrontUnderTest) -> list[list[int]]:
    """Those that the cluster got."""
    return [unpack_ids(request.packed_prompt()) for request in under_test.service.requests]


def scored(ids: list[int], num_top: int) -> list[Any]:
    return [scored_token(before, after, num_top, MOCK_VOCABULARY) for before, after in pairwise(ids)]


def test_an_echo_with_log_probabilities_has_those_of_the_prompt_too() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        whole = await answer(under_test, COMPLETIONS, prompt=PROMPT, echo=True, logprobs=2, max_tokens=5)
        [ids] = prompts_of(under_test)
        [choice] = whole["choices"]
        columns = choice["logprobs"]
        assert choice["text"].startswith(PROMPT)
        num_tokens = len(ids) + 5
        assert [len(column) for column in columns.values()] == [num_tokens] * 4
        assert (columns["token_logprobs"][0], columns["top_logprobs"][0], columns["text_offset"][0]) == (None, None, 0)
        for at, one in enumerate(scored(ids, 2), 1):
            assert columns["token_logprobs"][at] == one.logprob
            top = columns["top_logprobs"][at]
            assert top[columns["tokens"][at]] == one.logprob
            assert len(top) == (2 if one.rank == 1 else 3)
            assert max(top.values()) == one.top[0][1]
        # Where the text of a token begins is where the next one's does that has whole characters.
        for name, offset in zip(columns["tokens"], columns["text_offset"], strict=True):
            if not name.startswith(("bytes:", "token_id:", "<|bos|>")):
                assert choice["text"][offset:].startswith(name)
        assert "prompt_logprobs" not in choice

    with_front(main)


def test_nothing_is_generated_where_only_the_prompt_is_asked_about() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        whole = await answer(under_test, COMPLETIONS, prompt=[PROMPT, "So"], echo=True, logprobs=1, max_tokens=0)
        assert [request.sampling.max_tokens for request in under_test.service.requests] == [0, 0]
        assert [choice["text"] for choice in whole["choices"]] == [PROMPT, "So"]
        for ids, choice in zip(prompts_of(under_test), whole["choices"], strict=True):
            assert len(choice["logprobs"]["tokens"]) == len(ids)
            assert choice["finish_reason"] == "length"
        assert whole["usage"]["completion_tokens"] == 0

    with_front(main)


def test_prompt_logprobs_are_in_the_form_of_vllm() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        ids = [20, 21, 22, 23, 24, 25, 26]
        whole = await answer(under_test, COMPLETIONS, prompt=ids, prompt_logprobs=2, max_tokens=1)
        [choice] = whole["choices"]
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        for token_id, entries, one in zip(ids[1:], rest, scored(ids, 2), strict=True):
            own = entries[str(token_id)]
            assert (own["logprob"], own["rank"]) == (one.logprob, one.rank)
            assert next(iter(entries)) == str(token_id)
            assert own["decoded_token"] == under_test.tokenizer.pieces.bytes_of(token_id).decode("utf-8", "replace")
            ranks = [(entries[str(best)]["rank"], entries[str(best)]["logprob"]) for best, _ in one.top]
            assert ranks == [(rank, logprob) for rank, (_, logprob) in enumerate(one.top, 1)]
        assert choice["logprobs"] is None
        chat = await answer(under_test, CHAT, messages=MESSAGES, prompt_logprobs=0, max_tokens=1)
        ids = prompts_of(under_test)[-1]
        assert [None, *([str(one)] for one in ids[1:])] == [one and list(one) for one in chat["prompt_logprobs"]]

    with_front(main)


def test_the_choices_of_a_prompt_share_its_log_probabilities_which_are_computed_once() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        fields = {"prompt": ["One", "Two and more"], "max_tokens": 2, "logprobs": 1}
        whole = await answer(under_test, COMPLETIONS, **fields, prompt_logprobs=1, n=2)
        asked = [request.sampling.prompt_logprobs for request in under_test.service.requests]
        assert asked == [1, None, 1, None]
        shown = [choice["prompt_logprobs"] for choice in whole["choices"]]
        assert shown[0] == shown[1] != shown[2] == shown[3]
        best = await answer(under_test, COMPLETIONS, **fields, prompt_logprobs=1, n=1, best_of=2, return_token_ids=True)
        assert [choice["prompt_logprobs"] for choice in best["choices"]] == shown[::2]
        assert [len(choice["prompt_token_ids"]) for choice in best["choices"]] == [len(one) for one in shown[::2]]

    with_front(main)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("tokens_a_delta", [1, 3])
def test_token_ids_are_returned_whole_and_in_chunks(path: str, tokens_a_delta: int) -> None:
    async def main(under_test: FrontUnderTest) -> None:
        prompt = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": MESSAGES}
        whole = await answer(under_test, path, **prompt, return_token_ids=True, max_tokens=100)
        ids = under_test.tokenizer._tokenizer.encode(OUTPUT, add_special_tokens=False).ids
        [prompt_ids] = prompts_of(under_test)
        place = whole["choices"][0] if path == COMPLETIONS else whole
        assert place["prompt_token_ids"] == prompt_ids
        assert whole["choices"][0]["token_ids"] == ids
        fields = {**prompt, "return_token_ids": True, "stream": True, "max_tokens": 100, "n": 2}
        _, _, body = await under_test.post(path, **fields)
        chunks = [event for event in events_of(body) if isinstance(event, dict)]
        for index in (0, 1):
            own = [(chunk, choice) for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert [one for _, choice in own for one in choice["token_ids"]] == ids
            places = [choice if path == COMPLETIONS else chunk for chunk, choice in own]
            assert [place.get("prompt_token_ids") for place in places] == [prompt_ids, *[None] * (len(own) - 1)]
            assert len(own) >= len(ids) / tokens_a_delta

    with_front(main, tokens_a_delta=tokens_a_delta)


def test_ids_of_an_end_token_are_returned_and_its_text_is_not() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        ids = under_test.tokenizer._tokenizer.encode(OUTPUT, add_special_tokens=False).ids
        whole = await answer(under_test, COMPLETIONS, prompt="A", return_token_ids=True, max_tokens=100)
        [choice] = whole["choices"]
        assert choice["token_ids"] == ids
        assert OUTPUT.startswith(choice["text"])
        assert choice["text"] != OUTPUT

    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    with_front(main, reason="stop", stop_token_id=tokenizer.encode(OUTPUT, add_special_tokens=False).ids[-1])


def test_tokens_go_in_and_out_without_text() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        ids = under_test.tokenizer._tokenizer.encode(OUTPUT, add_special_tokens=False).ids
        fields = {"prompt": [20, 21], "detokenize": False, "max_tokens": 100}
        whole = await answer(under_test, COMPLETIONS, **fields, logprobs=0)
        [choice] = whole["choices"]
        assert (choice["text"], choice["prompt_token_ids"], choice["token_ids"]) == ("", [20, 21], ids)
        assert len(choice["logprobs"]["tokens"]) == len(ids)
        _, _, body = await under_test.post(COMPLETIONS, **fields, stream=True)
        choices = [choice for event in events_of(body) if isinstance(event, dict) for choice in event["choices"]]
        assert {choice["text"] for choice in choices} == {""}
        assert [one for choice in choices for one in choice["token_ids"]] == ids

    with_front(main)


def test_tokens_are_named_by_their_ids_where_that_is_asked_for() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        fields = {"return_tokens_as_token_ids": True, "max_tokens": 2}
        whole = await answer(under_test, COMPLETIONS, prompt=[20, 21], echo=True, logprobs=1, **fields)
        columns = whole["choices"][0]["logprobs"]
        assert columns["tokens"][:2] == ["token_id:20", "token_id:21"]
        assert all(name.startswith("token_id:") for top in columns["top_logprobs"][1:] for name in top)
        chat = await answer(under_test, CHAT, messages=MESSAGES, logprobs=True, top_logprobs=1, **fields)
        for entry in chat["choices"][0]["logprobs"]["content"]:
            for one in (entry, *entry["top_logprobs"]):
                assert one["token"].startswith("token_id:")
                assert bytes(one["bytes"]).decode() == one["token"]

    with_front(main)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 0, "echo": True, "n": 2}, "n"),
    (COMPLETIONS, {"max_tokens": 0, "echo": True, "best_of": 2}, "best_of"),
    (COMPLETIONS, {"max_tokens": -1, "echo": True}, "max_tokens"),
    (COMPLETIONS, {"echo": True, "logprobs": 1, "stream": True}, "echo"),
    (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
    (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (CHAT, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    (CHAT, {"max_tokens": 0, "prompt_logprobs": 0}, "max_tokens"),
    (COMPLETIONS, {"detokenize": False, "stop": ["x"]}, "stop"),
    (COMPLETIONS, {"detokenize": False, "echo": True}, "echo"),
    (COMPLETIONS, {"use_beam_search": True, "n": 2, "prompt_logprobs": 1}, "prompt_logprobs"),
    (COMPLETIONS, {"use_beam_search": True, "n": 2, "return_token_ids": True}, "return_token_ids"),
    (COMPLETIONS, {"use_beam_search": True, "n": 2, "echo": True, "logprobs": 1}, "echo"),
]


def test_what_is_not_served_is_refused_by_name() -> None:
    async def main(under_test: FrontUnderTest) -> None:
        for path, fields, param in REFUSED:
            prompt: dict[str, Any] = {"prompt": "A"} if path == COMPLETIONS else {"messages": MESSAGES}
            status, _, body = await under_test.post(path, **prompt, **fields)
            error = orjson.loads(body)["error"]
            assert (status, error["param"]) == (400, param), (fields, error)
            assert f"'{param}'" in error["message"]
        assert not under_test.service.requests

    with_front(main)


def test_answers_that_would_be_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_requests, "MAX_PROMPT_ENTRIES", 60)

    async def main(under_test: FrontUnderTest) -> None:
        fields = {"prompt": [[20] * 10, [21] * 10], "echo": True, "max_tokens": 0}
        await answer(under_test, COMPLETIONS, **fields, logprobs=2)
        status, _, body = await under_test.post(COMPLETIONS, **fields, logprobs=3)
        error = orjson.loads(body)["error"]
        assert (status, error["param"]) == (400, "logprobs")
        assert "80 log-probabilities of prompts; there may be 60" in error["message"]

    with_front(main)
