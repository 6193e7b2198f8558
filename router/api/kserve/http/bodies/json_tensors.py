"""Tensors whose elements stand in JSON."""

from __future__ import annotations

import json
from array import array
from math import isfinite, prod
from typing import Any

import orjson

from slipstream.router.api.kserve.json_fields import MAX_INT64, MAX_UINT64, as_list, as_text, refuse
from slipstream.router.api.kserve.tensor_values import FLOATS, INTEGERS, numbers_in
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.tensor import Tensor

MAX_DEPTH = 100  # of lists in lists
UNPARSABLE = "Unable to parse 'data'"
NOT_IN_JSON = ("FP16", "BF16")
LENGTH_BYTES = 4  # before each element of BYTES


def data_from_json(name: str, datatype: str, shape: tuple[int, ...], given: object, max_bytes: int) -> bytes:
    """The bytes of an input. Its elements may be nested in any way; only how many there are counts. Raises InferError
    with Triton's texts."""
    num_elements = prod(shape)
    if num_elements == 0:
        return b""
    elements = flattened(as_list(given, UNPARSABLE))
    if datatype == "BYTES":
        data = joined_texts(elements)
        check_size(name, len(data), max_bytes)
        return data
    if datatype in NOT_IN_JSON:
        hint = "Please use the binary data format for input"
        raise InferError(f"receiving {datatype} data via JSON is not supported. {hint} {name}")
    kind = DATATYPES.get(datatype)
    if kind is None or kind.element_bytes is None:
        raise InferError(f"invalid datatype for input {name}")
    check_size(name, num_elements * kind.element_bytes, max_bytes)
    data = packed(datatype, elements)
    if len(elements) != num_elements:
        refuse("Shape does not match true shape of 'data' field", UNPARSABLE)
    return data


def flattened(elements: list[Any]) -> list[Any]:
    """All elements in lists within lists."""
    for _ in range(MAX_DEPTH):
        if list not in set(map(type, elements)):
            return elements
        elements = [inner for one in elements for inner in (one if type(one) is list else (one,))]
    raise InferError(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def joined_texts(elements: list[Any]) -> bytes:
    """Each with its length before it."""
    parts = bytearray()
    for element in elements:
        encoded = as_text(element, "Unable to parse JSON bytes array").encode("utf-8", "surrogatepass")
        parts += len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded
    return bytes(parts)


def check_size(name: str, num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise InferError(
            f"JSON input '{name}' has a byte_size ({num_bytes} bytes) that exceeds the maximum allowed value of "
            f"{max_bytes} bytes. Use --http-max-input-size to increase the limit."
        )


def packed(datatype: str, elements: list[Any]) -> bytes:
    """Numbers or booleans as bytes. Integers that are too large lose their upper bits, as in Triton."""
    kinds = set(map(type, elements))
    if datatype == "BOOL":
        if kinds - {bool}:
            refuse("attempt to access JSON non-boolean as boolean", UNPARSABLE)
        return bytes(elements)
    if datatype in FLOATS:
        if kinds - {int, float}:
            refuse("attempt to access JSON non-number as double", UNPARSABLE)
        return array(FLOATS[datatype], elements).tobytes()
    is_signed = datatype.startswith("INT")
    if kinds - {int} or not within(elements, is_signed):
        word = "signed" if is_signed else "unsigned"
        refuse(f"attempt to access JSON non-{word}-integer as {word}-integer", UNPARSABLE)
    try:
        return array(INTEGERS[datatype], elements).tobytes()
    except OverflowError:
        width = DATATYPES[datatype].element_bytes or 0
        return b"".join([(element & MAX_UINT64).to_bytes(8, "little")[:width] for element in elements])


def within(elements: list[int], is_signed: bool) -> bool:
    """Whether all of them are 64-bit integers."""
    lowest, highest = min(elements, default=0), max(elements, default=0)
    return lowest >= -MAX_INT64 - 1 and highest <= MAX_INT64 if is_signed else lowest >= 0 and highest <= MAX_UINT64


def data_to_json(tensor: Tensor) -> tuple[list[Any], bool]:
    """The elements of an output, flat, and whether orjson can write them: it cannot write NaN, infinity, and bytes
    that are no UTF-8. Raises InferError if they do not fit the shape, or must not stand in JSON."""
    if tensor.datatype in NOT_IN_JSON:
        message = "data via JSON is not supported. Please use the binary data format for output"
        raise InferError(f"sending {tensor.datatype} {message}")
    view = tensor.view
    if tensor.datatype == "BYTES":
        return texts_in(tensor, view)
    if len(view) != tensor.num_elements * (DATATYPES[tensor.datatype].element_bytes or 0):
        text = "Failed to write 'data' field: output tensor shape does not match size of output for"
        raise InferError(f"{text} '{tensor.name}'", InferErrorCode.INTERNAL)
    numbers = numbers_in(view, tensor.datatype)
    if numbers is None:
        return [byte != 0 for byte in view], True
    values = numbers.tolist()
    return values, tensor.datatype not in FLOATS or isfinite(sum(values))


def texts_in(tensor: Tensor, view: memoryview) -> tuple[list[str], bool]:
    texts: list[str] = []
    is_plain, at = True, 0
    for _ in range(tensor.num_elements):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(view[at:begin], "little")
        if begin > len(view) or at > len(view):
            text = "output tensor shape does not match size of output for"
            raise InferError(f"{text} '{tensor.name}'", InferErrorCode.INTERNAL)
        try:
            texts.append(str(view[begin:at], "utf-8"))
        except UnicodeDecodeError:
            is_plain = False
            texts.append(str(view[begin:at], "utf-8", "surrogateescape"))
    return texts, is_plain


def as_json(value: object, *, is_plain: bool) -> bytes:
    """`is_plain`: orjson can write the tensors in it; what it cannot write of a model's parameters is escaped."""
    if is_plain:
        try:
            return orjson.dumps(value)
        except TypeError:  # an integer of over 64 bits, or text with a lone surrogate
            return json.dumps(value, separators=(",", ":")).encode()
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogateescape")


def json_integer(text: str) -> int | float:
    """As orjson reads it: one of over 64 bits is a float. Raises ValueError beyond that."""
    number = int(text)
    if -MAX_INT64 - 1 <= number <= MAX_UINT64:
        return number
    try:
        return float(number)
    except OverflowError:
        raise ValueError("a number is too large") from None


def from_json(data: bytes | memoryview) -> Any:
    """Raises InferError with Triton's text. NaN and infinity are allowed, as Python's clients write them."""
    prefix = "failed to parse the request JSON buffer"
    if not data:
        refuse("The document is empty. at 0", prefix)
    try:
        return orjson.loads(data)
    except ValueError as error:
        raw = bytes(data)
        if b"NaN" in raw or b"Infinity" in raw:
            try:
                fields = json.loads(raw, parse_int=json_integer)
                if b"\\ud" in raw.lower():
                    json.dumps(fields, ensure_ascii=False).encode()  # fails if a surrogate stands alone
                return fields
            except (ValueError, RecursionError):
                pass
        refuse(str(error), prefix)
