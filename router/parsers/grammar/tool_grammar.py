"""A tool of a request, as grammars know it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipstream.router.structured_output.json_schema.anything import DEFINITION, FREE_OBJECT, NAME

ANY_OBJECT = json.dumps({**FREE_OBJECT, "$defs": {NAME: DEFINITION}})


@dataclass(frozen=True)
class ToolGrammar:
    """`schema` is the JSON schema of the arguments as the trial has rewritten it, `parameters` what the client gave:
    parsers go by the types in that."""

    name: str
    schema: str = ANY_OBJECT
    parameters: str = "{}"

    @cached_property
    def rewritten(self) -> dict[str, Any]:
        """The schema without its definitions and options."""
        whole: dict[str, Any] = json.loads(self.schema)
        return {key: value for key, value in whole.items() if key not in ("$defs", "x-guidance")}

    @cached_property
    def definitions(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.schema).get("$defs", {})
        return found

    @cached_property
    def given(self) -> Mapping[str, Any]:
        """`parameters` as a value."""
        found: Mapping[str, Any] = json.loads(self.parameters)
        return found
