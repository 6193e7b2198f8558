"""Streams of the Responses API in tests: their events, and what a client puts together from them."""

from __future__ import annotations

from typing import Any

import orjson

Json = dict[str, Any]
PARTS = {"output_text": "text", "reasoning_text": "text", "function_call_arguments": "arguments"}
PARTS |= {"custom_tool_call_input": "input", "reasoning_summary_text": "text"}


def response_events(body: bytes) -> list[Json]:
    """The events of a stream. Their names are the types of their data, and they are numbered."""
    events = []
    for block in body.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, _, data = block.partition("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        event = orjson.loads(data[6:])
        assert event["type"] == name[7:]
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def put_together(events: list[Json]) -> list[Json]:
    """The output as a client accumulates it. Each text that is said to be done is what its deltas say, and each item
    that is done is what its events have made of it."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    output: list[Json] = []
    texts: dict[int, str] = {}
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        index = event["output_index"]
        if kind == "output_item.added":
            assert index == len(output)
            output.append(event["item"])
            texts[index] = ""
            continue
        item = output[index]
        if kind == "output_item.done":
            assert event["item"]["id"] == item["id"]
            output[index] = event["item"]
            continue
        assert event["item_id"] == item["id"]
        part, _, phase = kind.rpartition(".")
        if part == "content_part":
            assert event["content_index"] == 0
            assert event["part"]["text"] == texts[index]
            item["content"] = [event["part"]]
        elif part == "reasoning_summary_part":
            assert event["summary_index"] == 0
            assert event["part"] == {"type": "summary_text", "text": texts[index]}
            item["summary"] = [event["part"]]
        elif phase == "delta":
            assert event["delta"]
            texts[index] += event["delta"]
        else:
            assert (phase, event[PARTS[part]]) == ("done", texts[index])
    return output


def without_ids(value: Any) -> Any:
    """What two answers to the same request have in common."""
    if isinstance(value, dict):
        own = ("id", "call_id", "created_at", "completed_at", "item_id")
        return {name: without_ids(one) for name, one in value.items() if name not in own}
    return [without_ids(one) for one in value] if isinstance(value, list) else value
