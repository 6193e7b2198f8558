"""The inputs of requests: made up by the model's configuration, or from a file."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.client.conversation import Conversation
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferTurn, SequencePlace, TurnInput
from slipstream.cluster.tools.bench.tensors.model_facts import InputFact, TensorModelFacts
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.workers.backends.python.model_api.tensors.bytes_elements import serialize

NUM_MADE = 16  # different requests that are made up, and then repeated
LETTERS = "abcdefghijklmnopqrstuvwxyz "
ONE_BF16 = 0x3F80  # the bits of 1.0
MAX_SEQUENCE_ID = 2**31 - 1

Inputs = Sequence[TurnInput]


@dataclass(frozen=True, slots=True)
class MadeData:
    """Elements that are made up: floats from 0 to 1, integers from 0 to 127, texts of `text_length` letters; or with
    `is_zero` zeros and empty texts. `shapes` by name are for inputs whose dims may vary."""

    is_zero: bool = False
    text_length: int = 128
    shapes: Mapping[str, tuple[int, ...]] | None = None

    def inputs(self, model: TensorModelFacts, seed: int) -> list[Inputs]:
        """`NUM_MADE` requests of one row. Raises BenchError."""
        rng = np.random.default_rng(seed)
        shapes = dict(self.shapes or {})
        unknown = shapes.keys() - {one.name for one in model.inputs}
        if unknown:
            raise BenchError(f"--shape: {model.name} has no input {min(unknown)!r}")
        wanted = [(one, shape_of(one, shapes)) for one in model.inputs if not one.is_optional or one.name in shapes]
        count = 1 if self.is_zero else NUM_MADE
        return [[self._input(fact, shape, rng) for fact, shape in wanted] for _ in range(count)]

    def _input(self, fact: InputFact, shape: tuple[int, ...], rng: np.random.Generator) -> TurnInput:
        return TurnInput(fact.name, fact.datatype, shape, self._data(fact.datatype, math.prod(shape), rng))

    def _data(self, datatype: str, count: int, rng: np.random.Generator) -> bytes:
        kind = DATATYPES[datatype]
        if kind.element_bytes is None:
            length = 0 if self.is_zero else self.text_length
            draw = random.Random(int(rng.integers(2**32)))
            texts = ["".join(draw.choices(LETTERS, k=length)).encode() for _ in range(count)]
            return serialize(np.array(texts, np.object_))
        if self.is_zero:
            return bytes(count * kind.element_bytes)
        if kind.numpy_name is None:
            return (rng.integers(0, 2, count, np.uint16) * ONE_BF16).astype("<u2").tobytes()
        if datatype.startswith("FP"):
            return rng.random(count).astype(kind.numpy_name).tobytes()
        return rng.integers(0, 2 if datatype == "BOOL" else 128, count).astype(kind.numpy_name).tobytes()


def shape_of(fact: InputFact, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Raises BenchError."""
    given = shapes.get(fact.name)
    if given is None:
        if any(size < 0 for size in fact.dims):
            how = f"give --shape {fact.name}:SIZE,... or --input"
            raise BenchError(f"input {fact.name} has dims {list(fact.dims)}, which may vary: {how}")
        return fact.dims
    fits = len(given) == len(fact.dims) and all(b in (-1, a) for a, b in zip(given, fact.dims, strict=True))
    if not fits:
        raise BenchError(f"--shape {fact.name}: {list(given)} does not fit the dims {list(fact.dims)} of the model")
    return given


def batched(streams: Sequence[Sequence[Inputs]], model: TensorModelFacts, batch_size: int) -> list[list[Inputs]]:
    """Requests of `batch_size` rows: request N has the rows of `batch_size` requests from N on. Raises BenchError."""
    if batch_size > max(model.max_batch_size, 1):
        raise BenchError(f"--batch-size {batch_size}: the max_batch_size of {model.name} is {model.max_batch_size}")
    if not model.max_batch_size:
        return [list(stream) for stream in streams]
    return [
        [joined([stream[(first + row) % len(stream)] for row in range(batch_size)]) for first in range(len(stream))]
        for stream in streams
    ]


def joined(rows: Sequence[Inputs]) -> Inputs:
    """One request of several of one row. Raises BenchError."""
    made = []
    for same in zip(*rows, strict=True):
        first = same[0]
        if any((one.name, one.shape) != (first.name, first.shape) for one in same):
            raise BenchError(f"--batch-size: the rows of input {first.name} differ in their shapes")
        data = b"".join(one.data for one in same)
        made.append(TurnInput(first.name, first.datatype, (len(rows), *first.shape), data))
    return made


@dataclass(frozen=True, slots=True)
class InferSource:
    """Requests without end. Each stream is repeated; with `sequence_length` it is a sequence, which has that many
    requests, or as many as the stream has if that is 0."""

    streams: Sequence[Sequence[Inputs]]
    sequence_length: int | None = None

    def conversations(self, seed: int) -> Iterator[Conversation[InferTurn]]:
        if self.sequence_length is None:
            turns = [Conversation([InferTurn(inputs)]) for stream in self.streams for inputs in stream]
            yield from itertools.cycle(turns)
        ids = itertools.count(random.Random(seed).randrange(1, MAX_SEQUENCE_ID))
        for stream in itertools.cycle(self.streams):
            count = self.sequence_length or len(stream)
            sequence = next(ids)
            yield Conversation(
                [
                    InferTurn(inputs, SequencePlace(sequence, number == 0, number == count - 1))
                    for number, inputs in enumerate(itertools.islice(itertools.cycle(stream), count))
                ]
            )
