"""Grammars that are made to take long, asked for while others read their streams: a 400 that names the field, and no
stream notices."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.e2e.observation import wait_until_at_rest
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import MODEL, BackgroundStream, prompt_of, streaming

NUM_TOKENS = 600
# What no grammar may cost, and what it takes to find that out.
TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"anyOf": [{"type": "integer", "multipleOf": 9973 - n} for n in range(50)]}}, "guided_json"),
    ({"guided_regex": "x{1,10}a{1000000000}"}, "guided_regex"),
    ({"guided_grammar": "start: W\nW: /(a{97})+/ & /(a{89})+/ & /(a{83})+/ & /(a{79})+/\n"}, "guided_grammar"),
    ({"guided_grammar": "root ::= " + "(" * 5000}, "guided_grammar"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "bomb",
                    "schema": {"allOf": [{"anyOf": [{"required": [f"p{i}{j}"]} for j in range(9)]} for i in range(20)]},
                },
            }
        },
        "response_format.json_schema.schema",
    ),
]
# What is large, and is served.
MUCH: list[dict[str, Any]] = [
    {"guided_json": {"enum": [f"value {n}" for n in range(4000)]}},
    {"guided_json": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(400)}}},
    {"guided_regex": "(a{1,1000}){1,1000}"},
    {"guided_choice": [f"choice {n}" for n in range(1000)]},
]


@pytest.mark.timeout(240)
def test_grammars_that_take_long_are_refused_or_served_and_streams_beside_them_are_what_they_were(
    cluster: ServingCluster,
) -> None:
    def streams() -> list[BackgroundStream]:
        constrained = BackgroundStream(cluster, prompt_of(30, 41), NUM_TOKENS, regex="[a-z .]{1000,4000}")
        return [BackgroundStream(cluster, prompt_of(20, 40), NUM_TOKENS), constrained]

    before = streams()
    with streaming(before):
        expected = [stream.join() for stream in before]
    beside = streams()
    with streaming(beside), httpx.Client(base_url=cluster.base_url, timeout=100) as web:
        for stream in beside:
            stream.wait_for_pieces(5)
        for fields, param in TOO_MUCH:
            answer = web.post("/v1/chat/completions", json=ask(fields))
            assert answer.status_code == 400, (fields, answer.text)
            assert answer.json()["error"]["param"] == param
        for fields in MUCH:
            answer = web.post("/v1/chat/completions", json=ask(fields))
            assert answer.status_code == 200, (str(fields)[:80], answer.text)
            assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")
        assert [stream.join() for stream in beside] == expected
    assert [stream.error for stream in beside] == [None, None]
    wait_until_at_rest(cluster)


def ask(fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **fields}
    return json.loads(json.dumps(body))  # type: ignore[no-any-return]
