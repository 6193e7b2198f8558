"""A mistake in a schema, and its pointer."""

from __future__ import annotations


class SchemaError(ValueError):
    """A schema cannot be followed. `pointer` is the JSON pointer (RFC 6901) of the keyword that is the reason; an empty
    one means the whole schema."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"at {pointer}: {reason}" if pointer else reason)
        self.pointer = pointer
        self.reason = reason


class Derived(str):
    """The pointer to the keyword from which a schema was derived. What is inside that schema is not in the client's, so
    errors name the keyword."""

    __slots__ = ()


def child(pointer: str, *keys: str | int) -> str:
    """The pointer to a value inside the one that `pointer` names."""
    if isinstance(pointer, Derived):
        return pointer
    return pointer + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)
