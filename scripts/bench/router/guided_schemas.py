"""Schemas as applications send them: written by pydantic, by hand, and by OpenAPI generators."""

from __future__ import annotations

from typing import Any


def text(longest: int = 24, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **more}


def whole(low: int = 0, high: int = 9999) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def one_of(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def items(schema: dict[str, Any], most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": most}


def obj(required: str = "", /, **properties: Any) -> dict[str, Any]:
    """An object as pydantic describes it: with titles, without `additionalProperties`. `required` are names; without
    any, all are."""
    names = required.split() or list(properties)
    titled = {name: {"title": name.title(), **schema} for name, schema in properties.items()}
    return {"title": "Model", "type": "object", "properties": titled, "required": names}


MONEY = obj(amount={"type": "number", "minimum": 0, "maximum": 100000}, currency=one_of("EUR", "USD", "GBP"))
ADDRESS = obj(
    "street city", street=text(), city=text(16), zip=text(8, pattern="^[0-9]{4,6}$"), country=one_of("DE", "FR")
)

SCHEMAS: dict[str, dict[str, Any]] = {
    "sentiment": obj(
        label=one_of("positive", "neutral", "negative"), score={"type": "number", "minimum": 0, "maximum": 1}
    ),
    "person": obj("name age", name=text(), age=whole(0, 120), email={"type": ["string", "null"], "maxLength": 20}),
    "address": ADDRESS,
    "customer": {**obj(name=text(), address={"$ref": "#/$defs/Address"}), "$defs": {"Address": ADDRESS}},
    "invoice": {
        **obj(
            number=text(10),
            issued={"type": "string", "format": "date"},
            lines=items(obj(what=text(), count=whole(1, 99), price={"$ref": "#/$defs/Money"})),
            total={"$ref": "#/$defs/Money"},
        ),
        "$defs": {"Money": MONEY},
    },
    "event": obj(
        "title start",
        title=text(),
        start={"type": "string", "format": "date-time"},
        minutes=whole(5, 600),
        place=text(16),
    ),
    "entities": obj(
        entities=items(obj(text=text(16), kind=one_of("person", "place", "company"), start=whole(), end=whole()))
    ),
    "ticket": obj(
        "title priority",
        title=text(),
        priority=one_of("low", "medium", "high", "urgent"),
        tags=items(text(8)),
        assignee={"anyOf": [text(12), {"type": "null"}], "default": None},
    ),
    "recipe": obj(
        name=text(),
        servings=whole(1, 12),
        ingredients=items(
            obj(name=text(12), amount={"type": "number", "minimum": 0, "maximum": 1000}, unit=one_of("g", "ml"))
        ),
        steps=items(text(30)),
    ),
    "shape": {
        "oneOf": [
            obj("kind radius", kind={"const": "circle"}, radius=whole(1, 99)),
            obj("kind width height", kind={"const": "box"}, width=whole(1, 99), height=whole(1, 99)),
        ]
    },
    "tool call": obj(
        name=one_of("search", "open", "answer"),
        arguments={**obj("", query=text(20), limit=whole(1, 50)), "required": []},
    ),
    "settings": obj(
        "theme",
        theme=one_of("dark", "light"),
        font=text(10),
        size=whole(6, 40),
        wrap={"type": "boolean"},
        language=text(5),
    ),
    "product": obj(
        "id name price",
        id={"type": "string", "format": "uuid"},
        name=text(),
        price=MONEY,
        dimensions=obj(width=whole(), height=whole(), depth=whole()),
        in_stock={"type": "boolean"},
    ),
    "review": obj(stars=whole(1, 5), title=text(), pros=items(text(16)), cons=items(text(16)), verdict=text(30)),
    "graph": obj(
        nodes=items(obj(id=whole(0, 9), label=text(8))),
        edges=items(obj("source target", source=whole(0, 9), target=whole(0, 9))),
    ),
    "tree": {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": obj(
                "name",
                name=text(8),
                children={"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 2},
            )
        },
    },
    "weather": {
        "allOf": [
            {"$ref": "#/$defs/Place"},
            obj(celsius={"type": "number", "minimum": -60, "maximum": 60}, sky=one_of("clear", "clouds", "rain")),
        ],
        "$defs": {"Place": obj("city", city=text(16), country=text(12))},
    },
    "grades": {
        "type": "object",
        "additionalProperties": whole(0, 100),
        "propertyNames": one_of("art", "maths", "music"),
    },
    "flags": obj("", **{f"flag_{number}": {"type": "boolean"} for number in range(8)}),
    "matrix": obj(rows=items({"type": "array", "items": whole(-9, 9), "minItems": 3, "maxItems": 3})),
}
