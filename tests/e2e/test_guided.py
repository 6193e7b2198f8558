"""Structured answers of a real cluster: they fit, streamed or not, and neither kills nor drains change them."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import jsonschema

from tests.support.e2e.fleet_calls import decode_workers, drain, num_requests_on, scale, wait_for_fleet, wait_until_gone
from tests.support.e2e.freezing import frozen
from tests.support.e2e.observation import Scrape, moved, wait_until_at_rest
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import MODEL, BackgroundStream, client_of, prompt_of, streaming

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "size": {"type": "integer", "maximum": 99999}},
    "required": ["name", "size"],
}
MESSAGES: Any = [{"role": "user", "content": "Tell me about a ship."}]
WORDS = "[a-z .]{600,9000}"
# Seconds, so that a drain or a kill comes while they run: each takes hundredths of one.
NUM_TOKENS = 1800
ASKED: list[dict[str, Any]] = [
    {"prompt": prompt_of(20 + 60 * i, i), "temperature": float(i % 2), "seed": i, "regex": WORDS} for i in range(4)
]
# Calls as long as that: one that the request asks for, and one that the model begins, whose grammar begins then.
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "pattern": "^[a-z .]{600,9000}$"}, "size": {"type": "integer"}},
    "required": ["text"],
}
TELL = {"type": "function", "function": {"name": "tell", "parameters": ARGUMENTS}}
ONE_CALL: dict[str, Any] = {"messages": MESSAGES, "tools": [TELL], "parallel_tool_calls": False}
BEGIN_CALL = {"8": 100}
CALLS: list[dict[str, Any]] = [
    {**ONE_CALL, "tool_choice": "required", "logit_bias": {}},
    {**ONE_CALL, "tool_choice": "auto", "logit_bias": BEGIN_CALL, "temperature": 1.0, "seed": 5},
]


def streams_of(serving: ServingCluster, salt: str) -> list[BackgroundStream]:
    """Two greedy ones and two with seeds, and two with calls of tools."""
    return [BackgroundStream(serving, max_tokens=NUM_TOKENS, salt=salt, **asked) for asked in (*ASKED, *CALLS)]


def test_structured_answers_fit_whole_and_streamed(fleet: ServingCluster) -> None:
    with client_of(fleet) as client:
        form: Any = {"type": "json_schema", "json_schema": {"name": "ship", "schema": SCHEMA, "strict": True}}
        for seed in range(3):
            asked: Any = {"model": MODEL, "messages": MESSAGES, "seed": seed, "response_format": form}
            whole = client.chat.completions.create(**asked, max_tokens=200).choices[0]
            assert whole.finish_reason == "stop"
            ship = json.loads(whole.message.content or "")
            jsonschema.validate(ship, SCHEMA)
            assert ship.keys() == SCHEMA["properties"].keys()  # closed by default
            text = whole.message.content or ""
            assert re.match(r'\{"name": ?".*", ?"size": ?-?[0-9]+\}$', text, re.DOTALL)  # and on one line
            pieces = [
                chunk.choices[0].delta.content or ""
                for chunk in client.chat.completions.create(**asked, max_tokens=200, stream=True)
            ]
            assert "".join(pieces) == whole.message.content
        plain = client.completions.create(
            model=MODEL, prompt="A ship: ", max_tokens=200, extra_body={"guided_json": SCHEMA}
        ).choices[0]
        jsonschema.validate(json.loads(plain.text), SCHEMA)


def test_moves_and_kills_do_not_change_structured_answers(fleet: ServingCluster) -> None:
    wait_for_fleet(fleet, 1, 2)
    alone = streams_of(fleet, "alone")
    with streaming(alone):
        expected = [stream.join() for stream in alone]
    assert all(re.fullmatch(WORDS, text) for text in expected[: len(ASKED)])
    for text in expected[len(ASKED) :]:
        assert re.match(r'tell\{"text": ?"[a-z .]{500}', text), text
    wait_until_at_rest(fleet)

    before = Scrape.of(fleet)
    moving = streams_of(fleet, "moving")
    with streaming(moving):
        for stream in moving:
            stream.wait_for_pieces(5)
        with frozen(*(pid for worker in decode_workers(fleet) for pid in fleet.pids(worker))):  # no answer ends here
            # On a busy machine one of the two may have looked slower, and got none.
            staying, leaving = sorted(decode_workers(fleet), key=lambda worker: num_requests_on(fleet, worker))
            num_there = num_requests_on(fleet, leaving)
            assert num_there > 0
            drain(fleet, leaving)
        wait_until_gone(fleet, leaving)
        assert [stream.join() for stream in moving] == expected
    # On a busy machine one may end where it is.
    assert 0 < moved(before, Scrape.of(fleet), "slipstream:migrations_total", result="moved") <= num_there

    before = Scrape.of(fleet)
    killed = streams_of(fleet, "killed")
    with streaming(killed):
        for stream in killed:
            stream.wait_for_pieces(5)
        old = fleet.member(staying)
        os.kill(old.pids[0], signal.SIGKILL)
        assert [stream.join() for stream in killed] == expected
    assert [stream.error for stream in killed] == [None] * len(killed)
    assert moved(before, Scrape.of(fleet), "slipstream:retries_total") >= len(killed)
    fleet.wait_until_restarted(staying, old.pids)
    scale(fleet, "decode", 2)
    wait_for_fleet(fleet, 1, 2)
    wait_until_at_rest(fleet)
