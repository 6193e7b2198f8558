"""Guided answers of a real cluster: they fit, streamed or not, and neither kills nor drains change them."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import jsonschema
import openai

from slipstream.cluster.operator.client import client_of
from tests.e2e.conftest import SMALL, MakeCluster
from tests.e2e.observation import Scrape, moved, status_of, unrest, wait_until_clear, workers_of
from tests.e2e.streams import MODEL, BackgroundStream, prompt_of, streaming
from tests.e2e.streams import client_of as openai_of

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "size": {"type": "integer", "maximum": 99999}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "Tell me about a ship."}]
WORDS = "[a-z .]{1000,4000}"
NUM_TOKENS = 900
ASKED: list[dict[str, Any]] = [
    {"prompt": prompt_of(20 + 60 * i, i), "temperature": float(i % 2), "seed": i, "regex": WORDS} for i in range(4)
]


def streams_of(client: openai.OpenAI) -> list[BackgroundStream]:
    """Two greedy ones and two with seeds."""
    return [BackgroundStream(client, max_tokens=NUM_TOKENS, **asked) for asked in ASKED]


def test_guided_answers_fit_and_moves_and_kills_do_not_change_them(make_cluster: MakeCluster) -> None:
    settings = {
        **SMALL,
        "decode": {"replicas": 2},
        "router": {"dispatch": {"policy": "round_robin", "migration": {"precopy_pages": 8}}},
    }
    serving = make_cluster(settings)
    serving.start()
    with openai_of(serving) as client:
        form: Any = {"type": "json_schema", "json_schema": {"name": "ship", "schema": SCHEMA, "strict": True}}
        for seed in range(3):
            asked: Any = {"model": MODEL, "messages": MESSAGES, "seed": seed, "response_format": form}
            whole = client.chat.completions.create(**asked, max_tokens=200).choices[0]
            assert whole.finish_reason == "stop"
            jsonschema.validate(json.loads(whole.message.content or ""), SCHEMA)
            pieces = [
                chunk.choices[0].delta.content or ""
                for chunk in client.chat.completions.create(**asked, max_tokens=200, stream=True)
            ]
            assert "".join(pieces) == whole.message.content
        plain = client.completions.create(
            model=MODEL, prompt="A ship: ", max_tokens=200, extra_body={"guided_json": SCHEMA}
        ).choices[0]
        jsonschema.validate(json.loads(plain.text), SCHEMA)

        streams = streams_of(client)
        with streaming(streams):
            expected = [stream.join() for stream in streams]
        assert all(re.fullmatch(WORDS, text) for text in expected)

        before = Scrape.of(serving)
        moving = streams_of(client)
        with streaming(moving):
            for stream in moving:
                stream.wait_for_pieces(5)
            assert serving.state is not None
            num_there = {worker["peer"]["name"]: worker["num_requests"] for worker in workers_of(serving, "decode")}
            assert num_there["decode-0"] > 0
            client_of(serving.state).post("/v1/workers/decode-0/drain")
            wait_until_clear(serving, lambda: [w["peer"]["name"] for w in workers_of(serving, "decode")][1:], 60.0)
            assert not all(stream.finishes for stream in moving), "they had ended before the worker was gone"
            assert [stream.join() for stream in moving] == expected
        assert moved(before, Scrape.of(serving), "slipstream:migrations_total", result="moved") > 0

        killed = streams_of(client)
        with streaming(killed):
            for stream in killed:
                stream.wait_for_pieces(5)
            os.kill(serving.member("decode-1").pids[0], signal.SIGKILL)
            assert [stream.join() for stream in killed] == expected
        assert [stream.error for stream in killed] == [None] * len(killed)
        assert status_of(serving)["totals"]["retries"] != {}
    wait_until_clear(serving, lambda: [what for what in unrest(serving) if "decode-0" not in what], 60.0)
