"""Compiles a dataclass into a function that flattens it for MessagePack and one that checks and rebuilds it.

A dataclass travels as the array of its fields, in order; nested dataclasses are arrays inside it. New fields come last
and have defaults: a receiver that does not know them leaves them out, and one that knows more than its peer fills in
the defaults. So two versions of this program understand each other (see `messages.PROTOCOL_VERSION`). The functions are
generated as source and compiled once per class, as `dataclasses` itself does: walking the list of fields on every call
would cost about ten times as much, and every decode step carries one `TokenChunk` per stream.

Understood annotations: int, float, str, bytes, bool, Literal of strings, `X | None`, `tuple[X, ...]`, `tuple[A, B]`,
dataclasses made of these, and named tuples made of these (but not of dataclasses). Messages that occur several times
per request, or per token, are named tuples: they are created in a third of the time that a frozen dataclass takes, and
are packed as they are.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

Encoder = Callable[[Any], tuple[Any, ...]]
Decoder = Callable[[Any], Any]


class WireError(Exception):
    """Bytes that are not a valid message. The text names the message type and the field, and shows the bad value."""


def _refuse(place: str, expected: str, value: object) -> NoReturn:
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    raise WireError(f"{place}: expected {expected}, got {type(value).__name__} {shown}")


def _as_float(place: str, value: object) -> float:
    """A number as a float. NaN is refused: it compares unequal to itself and would poison any policy that reads it."""
    if type(value) is int:
        return float(value)
    if type(value) is not float or value != value:
        _refuse(place, "a number", value)
    return value


def _optional_part(annotation: Any) -> Any | None:
    """X for `X | None`, else None."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return None
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if len(parts) != 1 or len(get_args(annotation)) != 2:
        raise TypeError(f"a message field cannot be {annotation}")
    return parts[0]


def _is_variadic(args: tuple[Any, ...]) -> bool:
    return len(args) == 2 and args[1] is Ellipsis


def _is_named_tuple(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple)


def _is_record(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation) or _is_named_tuple(annotation)


def _field_names(cls: type) -> tuple[str, ...]:
    if _is_named_tuple(cls):
        names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        return names
    return tuple(field.name for field in dataclasses.fields(cls))


def _plain_defaults(cls: type) -> tuple[Any, ...]:
    """The defaults of the last fields, as they would arrive."""
    if _is_named_tuple(cls):
        return tuple(map(_as_arrived, cls._field_defaults.values()))  # type: ignore[attr-defined]
    found = []
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            found.append(_as_arrived(field.default))
        elif field.default_factory is not dataclasses.MISSING:
            found.append(_as_arrived(field.default_factory()))
    return tuple(found)


def _as_arrived(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        cls: type = type(value)
        return tuple(map(_as_arrived, encoder(cls)(value)))
    return tuple(map(_as_arrived, value)) if isinstance(value, (tuple, list)) else value


def _fitter(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """The function that brings an array of another length to that of the fields. It raises WireError where fields
    without a default are missing."""
    place, count, defaults = cls.__name__, len(_field_names(cls)), _plain_defaults(cls)
    least = count - len(defaults)
    expected = f"an array of {count} fields" if least == count else f"an array of {least} to {count} fields"

    def fit(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) < least:
            _refuse(place, expected, value)
        return (*value[:count], *defaults[len(value) - least :])

    return fit


def _holds_dataclass(annotation: Any) -> bool:
    if dataclasses.is_dataclass(annotation):
        return True
    parts = get_type_hints(annotation).values() if _is_named_tuple(annotation) else get_args(annotation)
    return any(map(_holds_dataclass, parts))


@cache
def encoder(cls: type) -> Encoder:
    """The function that turns an instance of the dataclass `cls` into a tuple of plain values."""
    hints = get_type_hints(cls)
    names: dict[str, Any] = {}

    def flat(annotation: Any, value: str) -> str:
        if not _holds_dataclass(annotation):
            return value
        if dataclasses.is_dataclass(annotation):
            name = f"encode_{annotation.__name__}"  # type: ignore[union-attr]
            names[name] = encoder(annotation)  # type: ignore[arg-type]
            return f"{name}({value})"
        inner = _optional_part(annotation)
        if inner is not None:
            return f"(None if {value} is None else {flat(inner, value)})"
        args = get_args(annotation)
        if get_origin(annotation) is tuple and _is_variadic(args):
            return f"({value} and [{flat(args[0], 'item')} for item in {value}])"
        raise TypeError(f"a message field cannot be {annotation}")

    fields = [flat(hints[name], f"message.{name}") for name in _field_names(cls)]
    body = f"return ({''.join(f'{f}, ' for f in fields)})"
    encode: Encoder = _compile(f"encode_{cls.__name__}", "message", [body], names)
    return encode


@cache
def decoder(cls: type) -> Decoder:
    """The function that checks an unpacked array and builds an instance of the dataclass or named tuple `cls` from it.
    It raises nothing but WireError."""
    return _DecoderSource(cls).compile()


class _DecoderSource:
    """Generates the source of one class's decoder, one statement per line."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._names: dict[str, Any] = {"cls": cls, "refuse": _refuse, "as_float": _as_float}
        self._lines: list[str] = []
        self._num_variables = 0

    def compile(self) -> Decoder:
        hints = get_type_hints(self._cls)
        names = _field_names(self._cls)
        count = len(names)
        place = self._cls.__name__
        self._names["fit"] = _fitter(self._cls)
        self._add(0, f"if type(value) is not tuple or len(value) != {count}:")
        self._add(1, "value = fit(value)")
        variables = [self._variable() for _ in names]
        if variables:
            self._add(0, f"({''.join(f'{v}, ' for v in variables)}) = value")
        for name, variable in zip(names, variables, strict=True):
            self._check(0, hints[name], variable, f"{place}.{name}")
        if _is_named_tuple(self._cls):
            self._names["new"] = tuple.__new__  # the class's own __new__ calls this, and takes twice the time
            self._add(0, f"return new(cls, ({''.join(f'{v}, ' for v in variables)}))")
        else:
            self._add(0, f"return cls({', '.join(variables)})")
        decode: Decoder = _compile(f"decode_{place}", "value", self._lines, self._names)
        return decode

    def _add(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _variable(self) -> str:
        self._num_variables += 1
        return f"v{self._num_variables}"

    def _check(self, depth: int, annotation: Any, variable: str, place: str) -> None:
        """Adds the statements that check `variable` and rebind it to its decoded form."""
        inner = _optional_part(annotation)
        origin = get_origin(annotation)
        if inner is not None:
            self._add(depth, f"if {variable} is not None:")
            self._check(depth + 1, inner, variable, place)
        elif annotation is float:
            self._add(depth, f"if type({variable}) is not float or {variable} != {variable}:")
            self._add(depth + 1, f"{variable} = as_float({place!r}, {variable})")
        elif annotation in (int, str, bytes, bool):
            self._add(depth, f"if type({variable}) is not {annotation.__name__}:")
            self._add(depth + 1, f"refuse({place!r}, {annotation.__name__!r}, {variable})")
        elif origin is Literal:
            choices = f"choices_{self._variable()}"
            self._names[choices] = frozenset(get_args(annotation))
            expected = "one of " + ", ".join(map(repr, get_args(annotation)))
            self._add(depth, f"if type({variable}) is not str or {variable} not in {choices}:")
            self._add(depth + 1, f"refuse({place!r}, {expected!r}, {variable})")
        elif _is_record(annotation):
            self._add(depth, f"{variable} = {self._nested(annotation)}({variable})")
        elif origin is tuple and _is_variadic(get_args(annotation)):
            self._check_sequence(depth, get_args(annotation)[0], variable, place)
        elif origin is tuple:
            self._check_record(depth, get_args(annotation), variable, place)
        else:
            raise TypeError(f"{place}: a message field cannot be {annotation}")

    def _nested(self, annotation: Any) -> str:
        name = f"decode_{annotation.__name__}"
        self._names[name] = decoder(annotation)
        return name

    def _check_sequence(self, depth: int, item: Any, variable: str, place: str) -> None:
        self._add(depth, f"if type({variable}) is not tuple:")
        self._add(depth + 1, f"refuse({place!r}, 'an array', {variable})")
        element = self._variable()
        self._add(depth, f"if {variable}:")
        if _is_record(item):
            nested = self._nested(item)
            self._add(depth + 1, f"{variable} = tuple([{nested}({element}) for {element} in {variable}])")
        elif item in (int, str, bytes, bool):
            self._add(depth + 1, f"for {element} in {variable}:")
            self._check(depth + 2, item, element, f"{place}[]")
        else:
            rebuilt = self._variable()
            self._add(depth + 1, f"{rebuilt} = []")
            self._add(depth + 1, f"for {element} in {variable}:")
            self._check(depth + 2, item, element, f"{place}[]")
            self._add(depth + 2, f"{rebuilt}.append({element})")
            self._add(depth + 1, f"{variable} = tuple({rebuilt})")

    def _check_record(self, depth: int, items: tuple[Any, ...], variable: str, place: str) -> None:
        self._add(depth, f"if type({variable}) is not tuple or len({variable}) != {len(items)}:")
        self._add(depth + 1, f"refuse({place!r}, 'an array of {len(items)}', {variable})")
        elements = [self._variable() for _ in items]
        unpacked = "".join(f"{element}, " for element in elements)
        self._add(depth, f"({unpacked}) = {variable}")
        for position, (item, element) in enumerate(zip(items, elements, strict=True)):
            self._check(depth, item, element, f"{place}[{position}]")
        self._add(depth, f"{variable} = ({unpacked})")


def _compile(name: str, argument: str, lines: list[str], names: dict[str, Any]) -> Any:
    source = f"def {name}({argument}):\n" + "\n".join("    " + line for line in lines)
    namespace = dict(names)
    exec(compile(source, f"<{name}>", "exec"), namespace)
    return namespace[name]
