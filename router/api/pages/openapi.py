"""The OpenAPI document (https://spec.openapis.org/oas/v3.1.0) of the routes that are served."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from slipstream.router.api.anthropic.error_form import is_of_messages
from slipstream.router.http.routes import Route

REFERENCE = "#/components/schemas/{model}"
DESCRIPTION = (
    "The API of a Slipstream router: OpenAI's endpoints, Anthropic's Messages API, vLLM's endpoints for tokens and "
    "health, and the state of the cluster. Errors have the form of the OpenAI API, or of Anthropic's at its paths."
)
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field at fault"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ANTHROPIC_ERROR_SCHEMA = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
        },
        "request_id": {"type": "string"},
    },
}


def document(routes: Iterable[Route], open_paths: Collection[str] | None, models: Sequence[str]) -> dict[str, Any]:
    """`open_paths` are those that need no key; None: there are no keys. `models` are examples for fields of that
    name."""
    routes = list(routes)
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=REFERENCE)
    for schema in schemas.get("$defs", {}).values():
        if models and "model" in schema.get("properties", {}):
            schema["properties"]["model"]["examples"] = list(models)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        has_key = open_paths is not None and route.path not in open_paths
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, has_key)
    components: dict[str, Any] = {
        "schemas": {**schemas.get("$defs", {}), "Error": ERROR_SCHEMA, "AnthropicError": ANTHROPIC_ERROR_SCHEMA}
    }
    if open_paths is not None:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slipstream", "version": "v1", "description": DESCRIPTION},
        "servers": [{"url": "./"}],  # relative to this document, whatever prefix it was found under
        "paths": paths,
        "components": components,
    }


def _operation(route: Route, has_key: bool) -> dict[str, Any]:
    text = inspect.getdoc(route.handler) or ""
    operation: dict[str, Any] = {"summary": text.partition("\n\n")[0].replace("\n", " ").partition(". ")[0]}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.path_fields
    ]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    content: dict[str, Any] = {"application/json": {}}
    if route.body is not None:
        schema = {"$ref": REFERENCE.format(model=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if "stream" in route.body.model_fields:
            content["text/event-stream"] = {}
    operation["responses"] = {"2XX": {"description": "The answer.", "content": content}, "default": _error(route)}
    if has_key:
        operation["security"] = [{"key": []}]
    return operation


def _error(route: Route) -> dict[str, Any]:
    name = "AnthropicError" if is_of_messages(route.path) else "Error"
    schema = {"$ref": REFERENCE.format(model=name)}
    return {"description": "What is wrong.", "content": {"application/json": {"schema": schema}}}
