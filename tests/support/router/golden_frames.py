"""One frame of every message, as a version of this program sends it.

`python tests/support/router/golden_frames.py` prints those of this version as JSON. A
release adds its file to `tests/router/protocol/frames`, which later versions must read.

The values follow from the types of the fields alone, so that any version can be asked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from slipstream.router.protocol.messages import PROTOCOL_VERSION
from slipstream.router.protocol.wire import TYPE_CODES, encode_frame

PLAIN = {int: 7, float: 1.5, str: "text", bytes: b"\x01\x00\x00\x00", bool: True}


def sample(hint: Any) -> Any:
    """A value of a field's annotation, the same in every version."""
    if hint in PLAIN:
        return PLAIN[hint]
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, tuple)):
        return hint(**{name: sample(part) for name, part in get_type_hints(hint).items()})
    args, origin = get_args(hint), get_origin(hint)
    if origin is Literal:
        return args[0]
    if origin in (Union, UnionType):
        return sample(next(part for part in args if part is not NoneType))
    assert origin is tuple
    return (sample(args[0]),) if args[-1] is Ellipsis else tuple(map(sample, args))


def plain(value: Any) -> Any:
    """Nested lists of plain values: the fields of records in order, bytes as text."""
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return list(map(plain, value))
    return value.hex() if isinstance(value, bytes) else value


def frames() -> Iterator[dict[str, Any]]:
    for kind in TYPE_CODES:
        message = sample(kind)
        yield {"kind": kind.__name__, "fields": plain(message), "frame": encode_frame(message).hex()}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(frame) for frame in frames())
    print(f'{{"protocol": {PROTOCOL_VERSION}, "frames": [\n{lines}\n]}}')
