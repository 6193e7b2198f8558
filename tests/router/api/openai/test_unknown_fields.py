"""Unknown fields are ignored and named, wherever they are; what is known to change the answer is not."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest

from slipstream.router.api.openai.body.unknown_fields import MAX_NAMES
from slipstream.router.config.router_config import ApiConfig
from slipstream.router.observability.front_counts import MAX_FIELDS, OTHERS, FieldCounts
from tests.support.router.fake_cluster import MODEL, FrontUnderTest, front, run

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
HEADER = "x-slipstream-ignored"


async def ignored_of(site: FrontUnderTest, path: str = CHAT, **fields: Any) -> str | None:
    """What the header of a good answer says."""
    status, headers, answer = await site.post(path, **({"messages": HI} if path == CHAT else {}), **fields)
    assert status == 200, answer
    return headers.get(HEADER)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_unknown_fields_are_named_in_the_header_at_every_depth(stream: bool) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        *HI,
        {"role": "user", "id": "msg_1", "content": [{"type": "text", "text": "b", "cache_control": None}]},
    ]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "label": "y"}}
    options = {"stream_options": {"include_usage": True, "chunk_size": 5}} if stream else {}

    async def main() -> None:
        async with front("abc") as site:
            body = {"messages": messages, "response_format": form, "litellm_metadata": {"a": 1}, **options}
            status, headers, answer = await site.post(CHAT, stream=stream, **body)
            assert status == 200, answer
            assert set(headers[HEADER].split(", ")) == {
                "litellm_metadata",
                "messages.*.content.*.cache_control",
                "messages.*.id",
                "response_format.json_schema.label",
                *(["stream_options.chunk_size"] if stream else []),
            }

    run(main)


def test_a_request_without_unknown_fields_has_no_header() -> None:
    async def main() -> None:
        async with front("abc") as site:
            assert await ignored_of(site, temperature=0.5, metadata={"made": "up"}) is None
            assert await ignored_of(site, COMPLETIONS, prompt="hi", logit_bias={"5": 1}) is None

    run(main)


def test_an_unknown_field_changes_nothing_else() -> None:
    async def main() -> None:
        async with front("abc") as site:
            await site.post(CHAT, messages=HI, temperature=0.5, seed=7, stop=["x"])
            await site.post(CHAT, messages=[{**HI[0], "id": "1"}], temperature=0.5, seed=7, stop=["x"], made_up=[{}])
            plain, other = site.service.requests
            assert (plain.prompt_ids, plain.sampling) == (other.prompt_ids, other.sampling)

    run(main)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_the_token_endpoints_ignore_them_too(path: str) -> None:
    async def main() -> None:
        async with front("abc") as site:
            fields: dict[str, Any] = {"prompt": "hi"} if path == "/tokenize" else {"tokens": [70]}
            status, headers, _ = await site.post(path, made_up=1, **fields)
            assert (status, headers[HEADER]) == (200, "made_up")

    run(main)


def test_names_are_made_safe_and_bounded() -> None:
    async def main() -> None:
        async with front("abc") as site:
            evil = {"a\r\nset-cookie: x": 1, "ö, b": 1, "": 1, "y" * 100_000: 1}
            reply = await ignored_of(site, **evil)
            assert reply == f"a??set-cookie??x, ???b, ?, {'y' * 64}"
            many = await ignored_of(site, **{f"x{i:03}": i for i in range(1000)})
            assert many is not None
            assert many.split(", ") == [*(f"x{i:03}" for i in range(MAX_NAMES)), "..."]

    run(main)


def test_a_field_that_would_change_the_answer_is_found_behind_any_number_of_others() -> None:
    async def main() -> None:
        async with front("abc") as site:
            many = {f"x{i}": i for i in range(1000)}
            status, _, answer = await site.post(CHAT, messages=HI, **many, regex="a+")
            assert (status, orjson.loads(answer)["error"]["param"]) == (400, "regex")
            assert await ignored_of(site, regex=None, typical_p=1.0, repeat_penalty=1, mirostat=0) is not None
            outputs = {"regex": "a", "structural_tag": "x"}
            status, _, answer = await site.post(CHAT, messages=HI, structured_outputs=outputs)
            assert (status, orjson.loads(answer)["error"]["param"]) == (400, "structured_outputs.structural_tag")

    run(main)


def test_a_wrong_known_field_is_a_400_beside_unknown_ones() -> None:
    async def main() -> None:
        async with front("abc") as site:
            many = {f"x{i}": i for i in range(1000)}
            status, _, answer = await site.post(CHAT, messages=[{**HI[0], "id": 1}], **many, temperature="hot")
            assert (status, orjson.loads(answer)["error"]["param"]) == (400, "temperature")

    run(main)


def test_they_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with front("abc") as site:
            for _ in range(2):
                await ignored_of(site, made_up=1, **{"5": 1})
            _, _, page = await site.request("GET", "/metrics")
            assert b'slipstream:ignored_fields_total{field="made_up"} 2.0' in page
            assert b'slipstream:ignored_fields_total{field="5"} 2.0' in page

    with caplog.at_level(logging.DEBUG, "slipstream.router.api.openai.body.parsing"):
        run(main)
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "ignored unknown fields: made_up, 5"
    ] * 2


def test_names_that_clients_make_up_become_a_bounded_number_of_time_series() -> None:
    counts = FieldCounts()
    for i in range(10 * MAX_FIELDS):
        counts.add(f"x{i}")
    counts.add("x0")
    assert len(counts) == MAX_FIELDS + 1
    assert (counts["x0"], counts[OTHERS]) == (2, 9 * MAX_FIELDS)


def test_they_are_refused_where_the_configuration_says_so() -> None:
    async def main() -> None:
        async with front("abc", api=ApiConfig(unknown_fields="refuse")) as site:
            status, headers, answer = await site.post(CHAT, messages=[{**HI[0], "id": "1"}])
            error = orjson.loads(answer)["error"]
            assert (status, error["code"], error["param"]) == (400, "unknown_parameter", "messages.0.id")
            assert HEADER not in headers
            assert (await site.post(CHAT, messages=HI))[0] == 200

    run(main)


def test_the_answer_to_a_refused_request_names_them_too() -> None:
    async def main() -> None:
        async with front("abc") as site:
            body = {"model": MODEL, "prompt": [5] * 512, "made_up": 1}
            status, headers, _ = await site.request("POST", COMPLETIONS, body)
            assert (status, headers[HEADER]) == (400, "made_up")

    run(main)
