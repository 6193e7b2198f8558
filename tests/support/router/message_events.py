"""A stream of the Messages API as events, and the message that a client puts together from them."""

from __future__ import annotations

from typing import Any

import orjson

PING = "ping"


def message_events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without pings. Each is named as its data says."""
    events = []
    for block in body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != PING:
            events.append(event)
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the SDKs do, and more strictly: each event has to be where it belongs."""
    first, *rest = events
    assert first["type"] == "message_start"
    message = first["message"]
    content = message["content"]
    assert content == []
    is_open = False
    inputs: list[str] = []
    for event in rest[:-2]:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert (is_open, index) == (False, len(content))
                content.append(block)
                inputs, is_open = [], True
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert (is_open, index) == (True, len(content) - 1)
                block = content[-1]
                match delta:
                    case {"type": "text_delta", "text": text}:
                        block["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        block["thinking"] += text
                    case {"type": "signature_delta", "signature": signature}:
                        assert block["signature"] == ""
                        block["signature"] = signature
                    case {"type": "input_json_delta", "partial_json": text}:
                        inputs.append(text)
            case {"type": "content_block_stop", "index": index}:
                assert (is_open, index) == (True, len(content) - 1)
                is_open = False
                if content[-1]["type"] == "tool_use":
                    content[-1]["input"] = orjson.loads("".join(inputs) or "{}")
            case _:
                raise AssertionError(event)
    delta, stop = rest[-2:]
    assert not is_open
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    return message | delta["delta"] | {"usage": delta["usage"]}
