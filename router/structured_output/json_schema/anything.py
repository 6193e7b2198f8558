"""Values and objects of which a schema says nothing, as the grammar has them.

No grammar can remember which names an object already has. Where the schema does not name them, a model that repeats
itself would continue to the end, so the number of properties is bounded.
"""

from __future__ import annotations

from typing import Any

MAX_FREE_PROPERTIES = 256
NAME = "any"
ANYTHING: dict[str, Any] = {"$ref": f"#/$defs/{NAME}"}
FREE_OBJECT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": ANYTHING,
    "maxProperties": MAX_FREE_PROPERTIES,
}
DEFINITION: dict[str, Any] = {
    "anyOf": [{"type": ["null", "boolean", "number", "string"]}, {"type": "array", "items": ANYTHING}, FREE_OBJECT]
}
