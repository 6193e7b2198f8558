"""Inputs from a file: perf_analyzer's JSON for `--input-data`, or JSON lines.

    {"data": [{"A": [1, 2, 3], "B": {"content": [1, 2], "shape": [2]}}, {"A": {"b64": "AAAA"}, ...}]}
    {"data": [[{...}, {...}], [{...}]]}       two sequences

A line of JSON lines is one request, or the list of those of a sequence.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.tensors.clients.infer_client import TurnInput
from slipstream.cluster.tools.bench.tensors.model_facts import InputFact, TensorModelFacts
from slipstream.cluster.tools.bench.tensors.tensor_data import Inputs, shape_of
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.workers.backends.python.model_api.tensors.bytes_elements import serialize


def streams_of_file(path: Path, model: TensorModelFacts, shapes: Mapping[str, tuple[int, ...]]) -> list[list[Inputs]]:
    """The requests, of one row each, by sequence; those outside sequences are one stream. Raises BenchError."""
    try:
        entries = entries_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--input: {path}: {error}") from None
    except ValueError as error:
        raise BenchError(f"--input: {path}: not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise BenchError(f"--input: {path}: expected a list `data` with requests, or a request in each line")
    sequences = [entry for entry in entries if isinstance(entry, list)]
    if sequences and len(sequences) != len(entries):
        raise BenchError(f"--input: {path}: either all entries are sequences (lists) or none")
    streams = sequences or [entries]
    return [
        [
            inputs_of(entry, model, shapes, f"{path}: request {number}" + (f" of sequence {of}" if sequences else ""))
            for number, entry in enumerate(stream, 1)
        ]
        for of, stream in enumerate(streams, 1)
    ]


def entries_of(text: str) -> Any:
    """Raises ValueError."""
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return whole.get("data", [whole]) if isinstance(whole, dict) else whole


def inputs_of(entry: Any, model: TensorModelFacts, shapes: Mapping[str, tuple[int, ...]], where: str) -> Inputs:
    """Raises BenchError."""
    if not isinstance(entry, dict):
        raise BenchError(f"--input: {where}: expected an object with the inputs, got {entry!r:.80}")
    facts = {fact.name: fact for fact in model.inputs}
    unknown = entry.keys() - facts.keys()
    if unknown:
        raise BenchError(f"--input: {where}: {model.name} has no input {min(unknown)!r}")
    missing = [name for name, fact in facts.items() if name not in entry and not fact.is_optional]
    if missing:
        raise BenchError(f"--input: {where}: no data for input {missing[0]!r}")
    return [input_of(facts[name], entry[name], shapes, where) for name in facts if name in entry]


def input_of(fact: InputFact, value: Any, shapes: Mapping[str, tuple[int, ...]], where: str) -> TurnInput:
    """Raises BenchError."""
    shape: tuple[int, ...] | None = None
    if isinstance(value, dict) and "shape" in value:
        shape = tuple(map(int, value["shape"]))
    content = value.get("content") if isinstance(value, dict) and "content" in value else value
    try:
        data, count = encoded(fact.datatype, content)
    except (ValueError, TypeError, OverflowError) as error:
        raise BenchError(f"--input: {where}: input {fact.name}: {error}") from None
    if shape is None:
        shape = guessed_shape(fact, count) if fact.name not in shapes else shape_of(fact, shapes)
    if count != math.prod(shape):
        raise BenchError(f"--input: {where}: input {fact.name}: {count} elements for the shape {list(shape)}")
    return TurnInput(fact.name, fact.datatype, shape, data)


def guessed_shape(fact: InputFact, count: int) -> tuple[int, ...]:
    """One size that may vary is what the number of elements leaves."""
    variable = [index for index, size in enumerate(fact.dims) if size < 0]
    if len(variable) != 1:
        return shape_of(fact, {})
    rest = math.prod(size for size in fact.dims if size >= 0)
    return tuple(count // max(rest, 1) if size < 0 else size for size in fact.dims)


def encoded(datatype: str, content: Any) -> tuple[bytes, int]:
    """The bytes, and how many elements they are. Raises ValueError, TypeError or OverflowError."""
    kind = DATATYPES[datatype]
    if isinstance(content, dict) and "b64" in content:
        data = base64.b64decode(content["b64"], validate=True)
        if kind.element_bytes is None:
            return serialize(np.array([data], np.object_)), 1
        return data, len(data) // kind.element_bytes
    values = flattened(content if isinstance(content, list) else [content])
    if kind.element_bytes is None:
        texts = np.empty(len(values), np.object_)
        texts[:] = [str(value) for value in values]
        return serialize(texts), len(values)
    if kind.numpy_name is None:  # BF16: the upper half of FP32
        return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes(), len(values)
    return np.array(values, kind.numpy_name).tobytes(), len(values)


def flattened(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat += flattened(value) if isinstance(value, list) else [value]
    return flat
