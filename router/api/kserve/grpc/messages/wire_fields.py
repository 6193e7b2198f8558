"""Fields of a protobuf message, found and written without a copy of their bytes.

Protobuf's own parser copies each `bytes` field twice, which is much for a tensor of 64 MB. And most of a small request
is the same as in the one before it, so that what its parts say can be remembered by their bytes.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from slipstream.router.tensor_memory.region_pool import INLINE_BYTES

LENGTH_DELIMITED = 2
LAST_SHIFT = 63  # bits before the tenth and last byte that a varint may have


class UnknownField(ValueError):  # noqa: N818 - names the condition
    """The message is malformed, or has a field that only a parser that knows all of them can read."""


def length_delimited_fields(data: bytes) -> list[tuple[int, bytes | memoryview]]:
    """Number and contents of each field, in their order: strings, bytes and messages only. Contents of more than
    `INLINE_BYTES` are views of `data`. Raises UnknownField."""
    fields: list[tuple[int, bytes | memoryview]] = []
    position, end = 0, len(data)
    try:
        while position < end:
            tag, length = data[position], data[position + 1]
            position += 2
            if tag & 0x87 != LENGTH_DELIMITED:  # of another type, or with a number of over 15
                raise UnknownField(f"the tag at byte {position - 2} is {tag}")
            if length > 0x7F:
                length, position = _rest_of_varint(data, length & 0x7F, position)
            stop = position + length
            if stop > end:
                raise UnknownField(f"the field at byte {position} ends at {stop}, beyond the message's {end} bytes")
            part = data[position:stop] if length <= INLINE_BYTES else memoryview(data)[position:stop]
            fields.append((tag >> 3, part))
            position = stop
    except IndexError:
        raise UnknownField(f"the message ends within a field at byte {position}") from None
    return fields


def _rest_of_varint(data: bytes, value: int, position: int) -> tuple[int, int]:
    for shift in range(7, LAST_SHIFT + 1, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise UnknownField(f"the length before byte {position} has no end")


def varint(value: int) -> bytes:
    """`value` must not be negative."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field_head(number: int, num_bytes: int) -> bytes:
    """What stands before the contents of a string, of bytes or of a message. `number` is at most 15."""
    return bytes((number << 3 | LENGTH_DELIMITED,)) + varint(num_bytes)


def text_field(number: int, text: str) -> bytes:
    """A string; nothing if it is empty, as proto3 says. What is no UTF-8 in it (a lone surrogate) is written out."""
    if not text:
        return b""
    encoded = text.encode("utf-8", "backslashreplace")
    return field_head(number, len(encoded)) + encoded
