"""`config.pbtxt`, and the JSON that stands for it in load requests and in what a model completes, as messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError, raise_first

POSITION = re.compile(r"^(\d+):(\d+) : ")
UNKNOWN_FIELD = re.compile(r'Message type "inference\.(\w+)" has no field named "(\w+)"')
STRING_FOR_MESSAGE = 'Expected "{"'
OTHER_NAMES = {
    "priority_queue": "write priority_levels, default_priority_level and priority_queue_policy",
    "max_queue_delay_ms": "write max_queue_delay_microseconds",
    "batch_size": "write max_batch_size",
    "inputs": "write input",
    "outputs": "write output",
    "datatype": "write data_type",
    "shape": "write dims",
}


def parse_text(text: str) -> ModelConfig:
    """Raises ModelConfigError with the line, and what to write instead for mistakes that guides print."""
    try:
        return _with_known_values(text_format.Parse(text, ModelConfig()))
    except (text_format.ParseError, ValueError, RecursionError) as error:  # ValueError: a number out of range
        raise ModelConfigError(ConfigFault(_field_of(str(error)), _explained(str(error), text))) from None


def parse_json(text: str | bytes) -> ModelConfig:
    """The `config` of a load request. Raises ModelConfigError."""
    try:
        return _with_known_values(json_format.Parse(text, ModelConfig()))
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise ModelConfigError(ConfigFault("", f"Invalid config override: {_first_line(error)}")) from None


def from_dict(config: Mapping[str, Any]) -> ModelConfig:
    """What a model has completed. Raises ModelConfigError."""
    try:
        return _with_known_values(json_format.ParseDict(dict(config), ModelConfig()))
    except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        raise ModelConfigError(ConfigFault("", _first_line(error))) from None


def _with_known_values(config: ModelConfig) -> ModelConfig:
    """The configuration itself. Raises ModelConfigError for the number of an enumeration that stands for nothing, which
    protobuf takes for one of a later version."""
    raise_first(_unknown_values(config, ""))
    return config


def _unknown_values(message: Message, path: str) -> Iterator[ConfigFault]:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        many = _values_of(value)
        if field.enum_type is not None:
            for number in many:
                if number not in field.enum_type.values_by_number:
                    yield ConfigFault(name, f"{field.enum_type.full_name} has no value {number}")
        for part in many if field.message_type is not None else ():
            if isinstance(part, Message):  # else a text, the value of a map
                yield from _unknown_values(part, f"{name}.")


def _values_of(value: Any) -> list[Any]:
    """Of a field: its one value, those of a list, or those of a map."""
    if isinstance(value, str | bytes | int | float | Message):
        return [value]
    return list(value.values() if isinstance(value, Mapping) else value)


def _first_line(error: object) -> str:
    """Without the list of all fields, and the full stops, that protobuf adds."""
    return str(error).partition("\n")[0].removesuffix(".").removesuffix(".")


def _field_of(error: str) -> str:
    found = UNKNOWN_FIELD.search(error)
    return found[2] if found else ""


def _explained(error: str, text: str) -> str:
    """`line 3: ...`, and the line itself instead of all the text that protobuf quotes."""
    found = POSITION.match(error)
    if found is None:
        return _first_line(error)
    number = int(found[1])
    lines = text.splitlines()
    line = lines[number - 1].strip() if number <= len(lines) else ""
    reason = error[found.end() :].removeprefix(f"'{lines[number - 1]}': " if line else "")
    return f"line {number}: {_first_line(reason)} (`{line}`){_hint(reason, line)}"


def _hint(reason: str, line: str) -> str:
    unknown = UNKNOWN_FIELD.search(reason)
    if unknown is not None and unknown[2] in OTHER_NAMES:
        return f": {OTHER_NAMES[unknown[2]]}"
    if STRING_FOR_MESSAGE in reason and "value" in line:
        return ': write value: { string_value: "..." }'
    return ""
