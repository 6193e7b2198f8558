"""Items of an input as they are stored and shown: with an id, and with their texts in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.router.api.openai.responses.body.input_items import InputItem, ItemReference

INPUT_OFFSET = 0x100000  # of the ids of an input; those of the output begin at 0
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
Json = dict[str, Any]


def input_id(kind: str, number: str, index: int) -> str:
    """The id of an item that came without one. `number` is that of the response, or of the addition to a
    conversation, in 32 hexadecimal digits."""
    return f"{PREFIXES[kind]}_{number}{INPUT_OFFSET + index:06x}"


def shown_items(items: Sequence[InputItem], number: str, *, keeps_ids: bool = True) -> list[Json]:
    """The items of an input. `keeps_ids`: those that came with an id have it still; in a conversation, where an id
    stands for one item, all get new ones."""
    assert not any(isinstance(item, ItemReference) for item in items), "references have been replaced"
    items_json: list[Json] = [item.model_dump(mode="json", exclude_unset=True) for item in items]
    if not keeps_ids:
        items_json = [{**item, "id": None} for item in items_json]
    return [shown_item(item, number, index) for index, item in enumerate(items_json)]


def shown_item(item: Json, number: str, index: int) -> Json:
    kind = item.get("type") or "message"
    shown = {**item, "type": kind, "id": item.get("id") or input_id(kind, number, index)}
    if kind != "reasoning" or item.get("status") is not None:
        shown["status"] = item.get("status") or "completed"
    if kind == "reasoning":
        shown["summary"] = item.get("summary") or []
    if kind == "message":
        shown["content"] = parts_of(item["content"], item["role"])
    if isinstance(item.get("output"), list):
        shown["output"] = parts_of(item["output"], "tool")
    return {name: value for name, value in shown.items() if value is not None}


def parts_of(content: str | list[Json], role: str) -> list[Json]:
    """A text as the part that it stands for."""
    if not isinstance(content, str):
        return [part_of(part, role) for part in content]
    return [part_of({"text": content}, role)]


def part_of(part: Json, role: str) -> Json:
    if part.get("type") == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal") or ""}
    if role != "assistant":
        return {"type": "input_text", "text": part.get("text") or ""}
    annotations, logprobs = part.get("annotations") or [], part.get("logprobs") or []
    return {"type": "output_text", "text": part.get("text") or "", "annotations": annotations, "logprobs": logprobs}
