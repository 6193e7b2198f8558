"""The requests of a load, as a trace in Mooncake's form."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS

SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class Phase:
    """`seconds` of `per_s` requests a second (Poisson), with so many tokens, each up to `SPREAD` more or less."""

    name: str
    seconds: float
    per_s: float
    isl: int
    osl: int


@dataclass(frozen=True, slots=True)
class Load:
    """Two phases, and the levels that requests are to keep."""

    phases: tuple[Phase, ...]
    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True, slots=True)
class Request:
    at_s: float
    isl: int
    osl: int


def requests_of(phases: Sequence[Phase], seed: int) -> Iterator[Request]:
    rng, at_s, end_s = random.Random(seed), 0.0, 0.0
    for phase in phases:
        at_s, end_s = end_s, end_s + phase.seconds
        while (at_s := at_s + rng.expovariate(phase.per_s)) < end_s:
            isl, osl = (max(2, round(n * rng.uniform(1 - SPREAD, 1 + SPREAD))) for n in (phase.isl, phase.osl))
            yield Request(at_s, isl, osl)


def write_requests(requests: Iterable[Request], path: Path) -> None:
    """No prompt begins like another."""
    block = 0
    with path.open("w") as file:
        for one in requests:
            blocks = list(range(block, block - (-one.isl // BLOCK_TOKENS)))
            block += len(blocks)
            row = {
                "timestamp": one.at_s * 1e3,
                "input_length": one.isl,
                "output_length": one.osl,
                "hash_ids": blocks,
            }
            file.write(json.dumps(row) + "\n")
