"""A schema as the document in which its references are looked up."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from slipstream.router.json_schema.errors import SchemaError, child

MAX_DEPTH = 100
MAX_VALUES = 100_000
BASE = "http://schema.invalid/"  # of a schema without `$id`
# What these hold are values, or names of properties: an `$id` in them names no schema.
HOLD_NO_SCHEMAS = frozenset({"const", "enum", "default", "example", "examples", "required", "type"})


class Document:
    """Finds the targets of `$ref` in one document. Raises SchemaError if it is nested too deeply."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._bases: dict[str, str] = {}  # of the pointers at which one begins
        self._named: dict[str, str] = {}  # URI without or with an anchor -> pointer
        self._find_names()

    def target(self, reference: Any, pointer: str, key: str = "$ref") -> str:
        """The pointer to what a reference at `pointer` means; `key` is its keyword. Raises SchemaError."""
        at = child(pointer, key)
        if not isinstance(reference, str):
            raise SchemaError(at, f"{reference!r:.60} is not a reference")
        if reference == "#" or reference.startswith("#/"):
            start = self._base_pointer(pointer)
            if self.has(start + unquote(reference[1:])):
                return start + unquote(reference[1:])
            start = ""  # many write all their references from the root, whatever the `$id`
            uri, fragment = "", unquote(reference[1:])
        else:
            uri, fragment = urldefrag(urljoin(self._base_uri(pointer), reference))
            fragment = unquote(fragment)
            if fragment and not fragment.startswith("/"):
                named = self._named.get(f"{uri}#{fragment}")
                if named is None:
                    raise SchemaError(at, f"there is no {reference!r} in the schema")
                return named
            known = self._named.get(uri)
            if known is None:
                raise SchemaError(at, f"{reference!r} is not in the schema, and no other is fetched")
            start = known
        if not self.has(start + fragment):
            raise SchemaError(at, f"there is no {reference!r} in the schema")
        return start + fragment

    def has(self, pointer: str) -> bool:
        try:
            self.value(pointer)
        except LookupError:
            return False
        return True

    def value(self, pointer: str) -> Any:
        """What is at a pointer. Raises LookupError if nothing is."""
        value = self.root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and re.fullmatch("0|[1-9][0-9]{0,8}", key):
                value = value[int(key)]
            elif isinstance(value, dict):
                value = value[key]
            else:
                raise LookupError(pointer)
        return value

    def _find_names(self) -> None:
        """Notes every `$id` and anchor. This also bounds the document, so that those after it need not."""
        left: list[tuple[Any, str, str, int]] = [(self.root, "", BASE, 0)]
        num_values = 0
        self._named[BASE] = ""
        while left:
            value, pointer, base, depth = left.pop()
            num_values += 1
            if depth > MAX_DEPTH:
                raise SchemaError("", f"it is nested more than {MAX_DEPTH} deep")
            if num_values > MAX_VALUES:
                raise SchemaError("", f"it has more than {MAX_VALUES} values")
            if isinstance(value, list):
                left += ((item, child(pointer, number), base, depth + 1) for number, item in enumerate(value))
            elif isinstance(value, dict):
                name = value.get("$id", value.get("id"))
                if isinstance(name, str) and not name.startswith("#"):
                    base = urldefrag(urljoin(base, name)).url
                    self._bases[pointer] = base
                    self._named.setdefault(base, pointer)
                for anchor in (value.get("$anchor"), name[1:] if isinstance(name, str) and name[:1] == "#" else None):
                    if isinstance(anchor, str):
                        self._named.setdefault(f"{base}#{anchor}", pointer)
                left += (
                    (item, child(pointer, key), base, depth + 1)
                    for key, item in value.items()
                    if key not in HOLD_NO_SCHEMAS or (isinstance(item, dict) and pointer.endswith("/properties"))
                )

    def _base_pointer(self, pointer: str) -> str:
        while pointer and pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return pointer

    def _base_uri(self, pointer: str) -> str:
        return self._bases.get(self._base_pointer(pointer), BASE)
