"""A schema as the document in which its references are looked up."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from slipstream.router.structured_output.json_schema.errors import SchemaError, child

MAX_DEPTH = 100
MAX_VALUES = 100_000
UNPAIRED = "it has half of a surrogate pair in it, which is no text"
BASE = "http://schema.invalid/"  # of a schema without `$id`
# What these hold are values, or names of properties: an `$id` in them names no schema.
HOLD_NO_SCHEMAS = frozenset({"const", "enum", "default", "example", "examples", "required", "type"})


class Document:
    """Finds the targets of `$ref` in one document. Raises SchemaError if it is nested too deeply, has too many values,
    or holds text that UTF-8 cannot encode."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._bases: dict[str, str] = {}  # of the pointers at which one begins
        self._named: dict[str, str] = {}  # URI without or with an anchor -> pointer
        self._dynamic: dict[str, set[str]] = {}  # name of a `$dynamicAnchor` -> bases in which it is
        self._find_names()

    def target(self, reference: Any, pointer: str, key: str = "$ref") -> str:
        """The pointer to what a reference at `pointer` means; `key` is its keyword. Raises SchemaError."""
        at = child(pointer, key)
        if not isinstance(reference, str):
            raise SchemaError(at, f"{reference!r:.60} is not a reference")
        if key == "$dynamicRef" and len(self._dynamic.get(reference.partition("#")[2], ())) > 1:
            raise SchemaError(
                at,
                f"{reference!r:.60} is a '$dynamicAnchor' of several schemas; choosing between them is not served",
            )
        if reference == "#" or reference.startswith("#/"):
            start = self._base_pointer(pointer)
            if self.has(start + unquote(reference[1:])):
                return start + unquote(reference[1:])
            start = ""  # many write all their references from the root, whatever the `$id`
            uri, fragment = "", unquote(reference[1:])
        else:
            uri, fragment = urldefrag(_joined(self._base_uri(pointer), reference, at))
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
        """The value at a pointer. Raises LookupError if there is none."""
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
        """Notes every `$id` and anchor. This also bounds the document and checks its texts, so that those after it need
        not. Values that hold no schemas have no base."""
        left: list[tuple[Any, str, str | None, int]] = [(self.root, "", BASE, 0)]
        num_values = 0
        self._named[BASE] = ""
        while left:
            value, pointer, base, depth = left.pop()
            num_values += 1
            if depth > MAX_DEPTH:
                beginning = "/".join(pointer.split("/")[:4])  # the whole one is long
                raise SchemaError(beginning, f"it is nested more than {MAX_DEPTH} deep")
            if num_values > MAX_VALUES:
                raise SchemaError("", f"it has more than {MAX_VALUES} values")
            if isinstance(value, str) and not _is_encodable(value):
                raise SchemaError(pointer, UNPAIRED)
            if isinstance(value, list):
                left += ((item, child(pointer, number), base, depth + 1) for number, item in enumerate(value))
            elif isinstance(value, dict):
                if not all(map(_is_encodable, value)):
                    raise SchemaError(pointer, UNPAIRED)  # the name itself cannot be shown
                if base is not None:
                    base = self._note_names(value, pointer, base)
                is_in_properties = pointer.endswith("/properties")
                for key, item in value.items():
                    holds_schemas = key not in HOLD_NO_SCHEMAS or (isinstance(item, dict) and is_in_properties)
                    left.append((item, child(pointer, key), base if holds_schemas else None, depth + 1))

    def _note_names(self, schema: dict[str, Any], pointer: str, base: str) -> str:
        """Notes the names of one schema. Returns its base."""
        key = "$id" if "$id" in schema else "id"
        name = schema.get(key)
        anchors = [schema.get("$anchor"), schema.get("$dynamicAnchor")]
        if isinstance(name, str) and name.startswith("#"):
            anchors.append(name[1:])
        elif isinstance(name, str):
            base = urldefrag(_joined(base, name, child(pointer, key))).url
            self._bases[pointer] = base
            self._named.setdefault(base, pointer)
        for anchor in anchors:
            if isinstance(anchor, str):
                self._named.setdefault(f"{base}#{anchor}", pointer)
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], set()).add(base)
        return base

    def _base_pointer(self, pointer: str) -> str:
        while pointer and pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return pointer

    def _base_uri(self, pointer: str) -> str:
        return self._bases.get(self._base_pointer(pointer), BASE)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _joined(base: str, reference: str, at: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError as error:
        raise SchemaError(at, f"{reference!r:.60} is not a URI: {error}") from error
