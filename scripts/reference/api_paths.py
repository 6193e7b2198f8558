"""Writes docs/reference/api_paths.md from the OpenAPI document that a router serves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.reference.tables import cell  # noqa: E402
from slipstream.router.api.pages.openapi import document  # noqa: E402
from slipstream.router.catalog.catalog import Catalog  # noqa: E402
from slipstream.router.config.router_config import RouterConfig  # noqa: E402
from slipstream.router.dispatch.service import GenerationService  # noqa: E402
from slipstream.router.front.front import Front  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "api_paths.md"
HEAD = """# Paths of the API

All paths of a router and the fields of their bodies, as `/openapi.json` describes them. A router shows that at `/docs`,
to try out. What the fields mean and what is not served: [HTTP API](api.md). Paths of tensor models:
[Triton](../triton.md). This page is written by `scripts/reference/api_paths.py`.
"""
MAX_TYPE = 60  # characters of a type


def type_of(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_of(one) for one in schema[key]))
    if schema.get("type") == "array":
        return f"array of {type_of(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def body_table(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required", ())
    lines = ["", "| field | type | default |", "|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        kind = type_of(field)
        kind = kind if len(kind) <= MAX_TYPE else f"{kind[:MAX_TYPE]} ..."
        default = "required" if name in required else f"`{field['default']!r}`" if "default" in field else ""
        lines.append(f"| `{name}` | {cell(kind)} | {cell(default)} |")
    return lines


def page() -> str:
    """The whole page."""
    config = RouterConfig()
    service = GenerationService(config, models={}, token="unused")
    front = Front(Catalog(), service, lambda *_: None, lambda: 0, config)
    described = document(front.described_routes, None, ())
    schemas = described["components"]["schemas"]
    lines = [HEAD]
    for path, methods in sorted(described["paths"].items()):
        for method, operation in methods.items():
            lines += [
                f"## {method.upper()} {path}",
                "",
                cell(operation.get("summary") or operation.get("description", "")),
            ]
            content = operation.get("requestBody", {}).get("content", {})
            for one in content.values():
                name = type_of(one.get("schema", {}))
                if name in schemas:
                    lines += body_table(schemas[name])
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
