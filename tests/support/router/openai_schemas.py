"""The schemas of OpenAI's OpenAPI document that answers of the Responses API have to follow.

`openai_schemas.json` is an extract of https://github.com/openai/openai-openapi (MIT licence), made by

    python -m tests.support.router.openai_schemas openapi.json

It has what the roots below refer to, without descriptions, and without the members of unions that are about tools which
are not served. `oneOf` is `anyOf` in it: members of a union are told apart by `discriminator`, which JSON schema does
not know.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

EXTRACT = Path(__file__).with_name("openai_schemas.json")
ORIGIN = "https://github.com/openai/openai-openapi, version {version}; MIT licence, Copyright (c) OpenAI"
ROOTS = (
    *("Response", "ResponseStreamEvent", "ResponseItemList", "TokenCountsResource", "CreateResponse"),
    *("ConversationResource", "ConversationItemList", "ConversationItem", "DeletedConversationResource"),
)
UNSERVED = re.compile(
    r"(Response)?(FileSearch|WebSearch|Computer|CodeInterpreter|MCP|ImageGen|LocalShell|FunctionShell|Shell|ApplyPatch|"
    r"Program|ToolSearch|AdditionalTools|Compaction|Audio|Specific)\w*"
)
NOISE = frozenset({"description", "example", "examples", "title", "default", "deprecated", "discriminator"})


@cache
def validator(name: str) -> Draft202012Validator:
    """That of one of the roots."""
    schemas = json.loads(EXTRACT.read_text())["$defs"]
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schemas})


def check(name: str, value: Any) -> None:
    """Raises AssertionError, which names the place, if `value` does not follow the schema."""
    error = next(iter(sorted(validator(name).iter_errors(value), key=lambda one: -len(one.path))), None)
    assert error is None, f"{'.'.join(map(str, error.path))}: {error.message[:500]}"


def extract(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document["components"]["schemas"]
    found: dict[str, Any] = {}
    wanted = list(ROOTS)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = reduced(schemas[name])
            wanted += re.findall(r'"#/\$defs/([^"]+)"', json.dumps(found[name]))
    return {"origin": ORIGIN.format(version=document["info"]["version"]), "$defs": dict(sorted(found.items()))}


def reduced(schema: Any, *, is_map: bool = False) -> Any:
    """`is_map`: its keys are names of properties."""
    if isinstance(schema, list):
        return [reduced(one) for one in schema if not is_unserved(one)]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if is_map:
            made[key] = reduced(value)
        elif key == "$ref":
            made[key] = value.replace("#/components/schemas/", "#/$defs/")
        elif key not in NOISE and not key.startswith("x-"):
            made["anyOf" if key == "oneOf" else key] = reduced(value, is_map=key == "properties")
    return made


def is_unserved(schema: Any) -> bool:
    reference = schema.get("$ref", "") if isinstance(schema, dict) else ""
    return UNSERVED.fullmatch(reference.rpartition("/")[2]) is not None


if __name__ == "__main__":
    made = extract(json.loads(Path(sys.argv[1]).read_text()))
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in made["$defs"].items()]
    EXTRACT.write_text(f'{{"origin": {json.dumps(made["origin"])},\n"$defs": {{\n' + ",\n".join(lines) + "\n}}\n")
