"""300 tools with schemas as agents and MCP servers send them: kinds of parameters, put together by seeds."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

NUM_TOOLS = 300
VERBS = ("get", "list", "create", "update", "delete", "search", "send", "book", "convert", "schedule", "read", "write")
NOUNS = ("weather", "file", "issue", "user", "flight", "invoice", "table", "message", "event", "page", "shape", "order")
WORDS = ("alpha", "beta", "red", "green", "metric", "imperial", "asc", "desc", "open", "closed", "draft")


class ToolSchema(NamedTuple):
    name: str
    parameters: dict[str, Any]
    kind: str


def text(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "description": f'What to {rng.choice(VERBS)}, e.g. "{rng.choice(WORDS)}"'}


def bounded_text(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "minLength": rng.choice((0, 1, 3)), "maxLength": rng.choice((5, 20))}


def choice(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "enum": rng.sample(WORDS, rng.choice((1, 2, 4)))}


def mixed_choice(rng: random.Random) -> dict[str, Any]:
    return {"enum": rng.sample(["auto", 1, 2.5, True, None, "none"], 3)}


def constant(rng: random.Random) -> dict[str, Any]:
    return {"const": rng.choice(WORDS)}


def pattern(rng: random.Random) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": rng.choice(("^[A-Z]{2,4}-[0-9]{3}$", "^#[0-9a-f]{6}$", "^[a-z/]+\\.py$", "\\d")),
    }


def formatted(rng: random.Random) -> dict[str, Any]:
    return {"type": "string", "format": rng.choice(("date", "date-time", "time", "uuid", "email", "ipv4", "uri"))}


def integer(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        (
            {"type": "integer"},
            {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
            {"type": "integer", "exclusiveMinimum": -5, "maximum": 5},
            {"type": "integer", "multipleOf": 5, "minimum": 0},
        )
    )


def number(rng: random.Random) -> dict[str, Any]:
    return rng.choice(({"type": "number"}, {"type": "number", "minimum": -90, "maximum": 90}))


def flag(rng: random.Random) -> dict[str, Any]:
    return {"type": "boolean", "default": rng.random() < 0.5}


def optional_text(rng: random.Random) -> dict[str, Any]:
    """As pydantic writes `str | None`."""
    return {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Optional"}


def nullable(rng: random.Random) -> dict[str, Any]:
    return {"type": [rng.choice(("string", "integer", "boolean")), "null"]}


def union(rng: random.Random) -> dict[str, Any]:
    return {rng.choice(("anyOf", "oneOf")): [{"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 8}]}


def array(rng: random.Random) -> dict[str, Any]:
    items = rng.choice((text, choice, integer, number, flag))(rng)
    return {"type": "array", "items": items, "minItems": rng.choice((0, 1)), "maxItems": rng.choice((2, 3))}


def matrix(rng: random.Random) -> dict[str, Any]:
    row = {"type": "array", "items": {"type": "number"}, "maxItems": 2}
    return {"type": "array", "items": row, "maxItems": 2}


def nested(rng: random.Random) -> dict[str, Any]:
    makers = rng.sample((text, choice, integer, flag, number, pattern), 3)
    properties = {f"part_{number}": make(rng) for number, make in enumerate(makers)}
    return {"type": "object", "properties": properties, "required": ["part_0"], "additionalProperties": False}


def objects(rng: random.Random) -> dict[str, Any]:
    return {"type": "array", "items": nested(rng), "minItems": 1, "maxItems": 2}


def free_object(rng: random.Random) -> dict[str, Any]:
    return {"type": "object", "description": "Any headers", "maxProperties": 2}


def string_map(rng: random.Random) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}, "maxProperties": 2}


def anything(rng: random.Random) -> dict[str, Any]:
    return {"description": "Any value"}


KINDS: dict[str, tuple[Any, ...]] = {
    "simple": (text, integer, flag, number),
    "choices": (choice, mixed_choice, constant, flag),
    "texts": (bounded_text, pattern, formatted, text),
    "optional": (optional_text, nullable, text, integer),
    "arrays": (array, matrix, array, integer),
    "nested": (nested, objects, text, choice),
    "unions": (union, union, text, number),
    "open": (free_object, string_map, anything, text),
    "mixed": (text, choice, integer, array, nested, optional_text, pattern, flag),
    "references": (text, integer),
}


def tool_schemas() -> list[ToolSchema]:
    return [_tool(number) for number in range(NUM_TOOLS)]


def _tool(number: int) -> ToolSchema:
    rng = random.Random(number)
    kind = list(KINDS)[number % len(KINDS)]
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}_{number}"
    if number % 60 == 59:  # a function without parameters
        return ToolSchema(name, {"type": "object", "properties": {}}, "empty")
    makers = KINDS[kind]
    properties = {
        f"{rng.choice(NOUNS)}_{position}": rng.choice(makers)(rng) for position in range(rng.choice((1, 2, 3, 5)))
    }
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if kind == "references":
        node = {
            "type": "object",
            "properties": {"label": text(rng), "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["label"],
        }
        properties["node"] = {"$ref": "#/$defs/Node"}
        properties["mode"] = {"$ref": "#/$defs/Mode"}
        parameters["$defs"] = {"Node": node, "Mode": choice(rng)}
    names = list(properties)
    parameters["required"] = sorted(rng.sample(names, rng.randint(0, len(names))), key=names.index)
    if rng.random() < 0.5:
        parameters["additionalProperties"] = False
    if rng.random() < 0.3:
        parameters["$schema"] = "http://json-schema.org/draft-07/schema#"
    return ToolSchema(name, parameters, kind)
