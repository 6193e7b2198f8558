"""The configuration as JSON, as `GET /v2/models/M/config` and `args["model_config"]` show it."""

from __future__ import annotations

from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

INTEGERS_64 = {
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
}


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """With every default written out, and 64-bit integers as numbers, which protobuf's own JSON writes as strings."""
    plain: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _make_numbers(plain, config.DESCRIPTOR)
    return plain


def to_json(config: ModelConfig) -> bytes:
    return orjson.dumps(to_dict(config))


def _make_numbers(plain: dict[str, Any], descriptor: Descriptor) -> None:
    for field in descriptor.fields:
        value = plain.get(field.name)
        if value is None:
            continue
        if field.type in INTEGERS_64:
            plain[field.name] = [int(one) for one in value] if isinstance(value, list) else int(value)
        elif field.message_type is not None:
            for part in _parts(value, field.message_type):
                _make_numbers(*part)


def _parts(value: Any, descriptor: Descriptor) -> list[tuple[dict[str, Any], Descriptor]]:
    """The messages in a field, each with its type. Keys of a map remain text: JSON has no others."""
    if descriptor.GetOptions().map_entry:
        inner = descriptor.fields_by_name["value"].message_type
        return [] if inner is None else [(part, inner) for part in value.values()]
    return [(part, descriptor) for part in (value if isinstance(value, list) else [value])]
