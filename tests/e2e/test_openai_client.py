"""What the real openai client gets from a real cluster."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest

from tests.support.e2e.observation import Scrape, moved
from tests.support.e2e.reference import Reference
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import GREEDY, MODEL, complete, prompt_of

SHORT, LONG = prompt_of(20, variant=1), prompt_of(150, variant=2)
MESSAGES: list[Any] = [{"role": "user", "content": "Write a function that reads a file and returns its lines."}]


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["local", "remote"])
def test_a_streamed_completion_says_the_same_as_a_whole_one_and_as_transformers(
    either_client: openai.OpenAI, reference: Reference, prompt: list[int]
) -> None:
    whole = complete(either_client, prompt, 24)
    with either_client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=24, stream=True, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == whole == reference.text(prompt, 24)
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (len(prompt), 24)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_a_streamed_chat_says_the_same_as_a_whole_one(either_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    whole = either_client.chat.completions.create(**fields)
    with either_client.chat.completions.create(stream=True, **fields) as stream:
        choices = [choice for chunk in stream for choice in chunk.choices]
    assert whole.choices[0].message.role == choices[0].delta.role == "assistant"
    assert whole.choices[0].message.content
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_text_prompts_are_tokenised_as_the_tokenizer_does(client: openai.OpenAI, reference: Reference) -> None:
    text = "def read_lines(path):\n"
    answer = client.completions.create(model=MODEL, prompt=text, max_tokens=12, **GREEDY)
    prompt_ids = reference.encode(text)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_ids)
    assert answer.choices[0].text == reference.text(prompt_ids, 12)


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["local", "remote"])
def test_a_stop_string_ends_the_text_before_it(either_client: openai.OpenAI, prompt: list[int]) -> None:
    text = complete(either_client, prompt, 40)
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    fields: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 40,
        "stop": ["never said \x00", stop],
        **GREEDY,
    }
    whole = either_client.completions.create(**fields)
    assert whole.choices[0].text == text[: text.index(stop)]
    assert whole.choices[0].finish_reason == "stop"
    with either_client.completions.create(stream=True, **fields) as stream:
        choices = [choice for chunk in stream for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.choices[0].text
    assert choices[-1].finish_reason == "stop"


def test_a_seed_gives_the_same_text_again_wherever_the_prompt_is_computed(
    either_client: openai.OpenAI, either_cluster: ServingCluster
) -> None:
    """The second time the prompt is in the decode worker's cache, so it is computed there; a salt hides it again."""
    before = Scrape.of(either_cluster)

    def say(seed: int, salt: str) -> str:
        answer = either_client.completions.create(
            model=MODEL, prompt=LONG, max_tokens=24, temperature=1.0, seed=seed, extra_body={"cache_salt": salt}
        )
        return answer.choices[0].text

    remote, local, remote_again = say(7, "seed"), say(7, "seed"), say(7, "another seed")
    assert remote == local == remote_again
    assert say(8, "seed") != remote
    after = Scrape.of(either_cluster)
    assert moved(before, after, "slipstream:placements_total", reason="cached_prefix") == 2
    assert moved(before, after, "slipstream:transfers_total") == 2


def test_no_seed_gives_another_text(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model=MODEL, prompt=SHORT, max_tokens=24, temperature=1.5).choices[0].text
        for _ in range(3)
    }
    assert len(texts) > 1


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["local", "remote"])
def test_logprobs_of_completions_belong_to_the_text(either_client: openai.OpenAI, prompt: list[int]) -> None:
    answer = either_client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, logprobs=3, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 8
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert logprob <= 0
        assert top[token] == logprob
        assert sum(math.exp(value) for value in top.values()) <= 1 + 1e-3


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["local", "remote"])
def test_the_log_probabilities_of_a_prompt_are_those_that_its_tokens_got_when_they_were_generated(
    either_client: openai.OpenAI, prompt: list[int]
) -> None:
    fields: dict[str, Any] = {"model": MODEL, "logprobs": 3, **GREEDY, "extra_body": {"return_token_ids": True}}
    [generated] = either_client.completions.create(prompt=prompt, max_tokens=8, **fields).choices
    assert generated.model_extra is not None
    assert generated.logprobs is not None
    whole = [*prompt, *generated.model_extra["token_ids"]]
    for max_tokens in (0, 1):
        [echoed] = either_client.completions.create(prompt=whole, max_tokens=max_tokens, echo=True, **fields).choices
        logprobs = echoed.logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert logprobs.tokens is not None
        assert len(logprobs.token_logprobs) == len(whole) + max_tokens
        assert logprobs.token_logprobs[0] is None
        own = slice(len(prompt), len(whole))
        assert logprobs.tokens[own] == generated.logprobs.tokens
        assert logprobs.token_logprobs[own] == pytest.approx(generated.logprobs.token_logprobs, abs=1e-2)


def test_logprobs_of_chats_are_the_same_streamed_and_whole(either_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 6,
        "logprobs": True,
        "top_logprobs": 2,
        **GREEDY,
    }
    whole = either_client.chat.completions.create(**fields)
    assert whole.choices[0].logprobs is not None
    entries = whole.choices[0].logprobs.content
    assert entries is not None
    assert len(entries) == 6
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert entry.bytes
    with either_client.chat.completions.create(stream=True, **fields) as stream:
        streamed = [
            entry
            for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None
            for entry in choice.logprobs.content or ()
        ]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in entries], abs=1e-4)


def test_n_choices_differ_and_come_again_with_the_same_seed(either_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": LONG, "max_tokens": 16, "n": 3, "seed": 5, "temperature": 1.2}
    whole = either_client.completions.create(**fields)
    texts = {choice.index: choice.text for choice in whole.choices}
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3
    with either_client.completions.create(stream=True, **fields) as stream:
        streamed = dict.fromkeys(texts, "")
        finishes = []
        for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
                finishes += [choice.index] if choice.finish_reason else []
    assert streamed == texts
    assert sorted(finishes) == [0, 1, 2]


def test_usage_counts_what_was_cached_the_second_time(either_client: openai.OpenAI) -> None:
    usages = [
        either_client.completions.create(
            model=MODEL, prompt=prompt_of(100, variant=3), max_tokens=4, extra_body={"cache_salt": "usage"}, **GREEDY
        ).usage
        for _ in range(2)
    ]
    cached = []
    for usage in usages:
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 4, 104)
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, 96]  # whole pages of 16 tokens


def test_echo_and_lists_of_prompts_are_answered_in_order(client: openai.OpenAI) -> None:
    prompts = ["import os", "class Reader:", "def main():"]
    answer = client.completions.create(model=MODEL, prompt=prompts, max_tokens=5, echo=True, n=2, seed=1)
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        assert choice.text.startswith(prompts[choice.index // 2])
        assert len(choice.text) > len(prompts[choice.index // 2])
    alone = [complete(client, ids, 5) for ids in (SHORT, LONG)]
    together = client.completions.create(model=MODEL, prompt=[SHORT, LONG], max_tokens=5, **GREEDY)
    assert [choice.text for choice in together.choices] == alone


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["local", "remote"])
def test_one_token_is_one_token(either_client: openai.OpenAI, reference: Reference, prompt: list[int]) -> None:
    answer = either_client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=1, extra_body={"cache_salt": "one token"}, **GREEDY
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 1
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == reference.text(prompt, 1)


def test_without_max_tokens_a_completion_has_16_and_a_chat_goes_on_to_its_end(client: openai.OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt=SHORT, extra_body={"ignore_eos": True}, **GREEDY)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert chat.usage is not None
    if chat.choices[0].finish_reason == "length":
        assert chat.usage.total_tokens == 4096
    else:
        assert chat.choices[0].finish_reason == "stop"


def test_sampling_extras_have_their_effect(client: openai.OpenAI) -> None:
    plain = complete(client, SHORT, 12)
    assert complete(client, SHORT, 12, temperature=1.0, top_p=1e-6) == plain
    for extra in ({"top_k": 1}, {"min_p": 1.0}):
        answer = client.completions.create(
            model=MODEL, prompt=SHORT, max_tokens=12, extra_body=extra, logit_bias=GREEDY["logit_bias"]
        )
        assert answer.choices[0].text == plain
    texts = [
        client.completions.create(
            model=MODEL,
            prompt=SHORT,
            max_tokens=70,
            temperature=0,
            logit_bias={"300": 100},
            frequency_penalty=penalty,
        )
        .choices[0]
        .text
        for penalty in (0.0, 2.0)
    ]
    assert texts[0] == texts[0][: len(texts[0]) // 70] * 70  # the same token each time
    assert texts[1] != texts[0]  # by its fiftieth time it has lost all that its bias gave it


def test_a_stop_token_id_ends_the_text_and_min_tokens_puts_it_off(client: openai.OpenAI) -> None:
    biased: dict[str, Any] = {
        "model": MODEL,
        "prompt": SHORT,
        "max_tokens": 6,
        "temperature": 0,
        "logit_bias": {"300": 100},
    }
    stopped = client.completions.create(extra_body={"stop_token_ids": [300]}, **biased)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == ""
    later = client.completions.create(extra_body={"stop_token_ids": [300], "min_tokens": 4}, **biased)
    assert later.usage is not None
    assert later.usage.completion_tokens == 5
    assert later.choices[0].finish_reason == "stop"


def test_errors_are_those_of_the_openai_client(either_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(either_client, SHORT, 1, model="gpt-4o")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as wrong:
        complete(either_client, SHORT, 1, temperature=3.5)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        complete(either_client, [100] * 5000, 1)
    assert (long.value.param, long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as unsupported:
        either_client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            modalities=["text", "audio"],
        )
    assert unsupported.value.param == "modalities"


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")
