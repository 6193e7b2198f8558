"""Requests for the placement bench: the traces of others, and a mix of short and long prompts."""

from __future__ import annotations

import csv
import json
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.protocol.generation import GenerateRequest, Slo
from slipstream.router.protocol.messages import SamplingParams

MAX_TOKENS = 4096
BLOCK_TOKENS = 512  # of Mooncake's hash ids


@dataclass(frozen=True, slots=True)
class Arrival:
    """`blocks` name the prompt's blocks of `BLOCK_TOKENS` tokens, equal where prompts begin alike."""

    at_s: float
    input_length: int
    output_length: int
    blocks: tuple[int, ...]


def azure(path: Path, limit: int) -> list[Arrival]:
    """No prompt is like another: the trace does not say."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))[:limit]
    return [
        Arrival(
            float(row["arrival_s"]),
            int(row["input_length"]),
            max(int(row["output_length"]), 1),
            tuple(10_000_000 + at * 1000 + block for block in range(-(-int(row["input_length"]) // BLOCK_TOKENS))),
        )
        for at, row in enumerate(rows)
    ]


def mooncake(path: Path, limit: int) -> list[Arrival]:
    with path.open() as file:
        rows = [json.loads(line) for line, _ in zip(file, range(limit), strict=False)]
    return [
        Arrival(row["timestamp"] / 1e3, row["input_length"], max(row["output_length"], 1), tuple(row["hash_ids"]))
        for row in rows
    ]


def mixed(limit: int, seed: int = 1) -> list[Arrival]:
    """Seven chats in ten of a few hundred tokens with long answers, three documents of 2,000 to 8,000 with short ones,
    in bursts: Poisson arrivals whose rate doubles and halves every 10 s."""
    rng = random.Random(seed)
    arrivals, at_s = [], 0.0
    for number in range(limit):
        at_s += rng.expovariate(16.0 if int(at_s / 10) % 2 else 4.0)
        is_chat = rng.random() < 0.7
        length = rng.randint(50, 600) if is_chat else rng.randint(2000, 8000)
        output = max(1, round(rng.lognormvariate(5.3, 0.6))) if is_chat else rng.randint(20, 120)
        blocks = tuple(20_000_000 + number * 100 + block for block in range(-(-length // BLOCK_TOKENS)))
        arrivals.append(Arrival(at_s, length, output, blocks))
    return arrivals


def requests(arrivals: list[Arrival], speed: float, slo: Slo) -> Iterator[tuple[float, int, GenerateRequest]]:
    """(when, length of the answer, request); `speed` 2 brings them twice as fast. Clients allow `MAX_TOKENS`."""
    for number, arrival in enumerate(arrivals):
        ids = array("i")
        for block in arrival.blocks:
            ids.extend(range(block * 7 % 1_000_003, block * 7 % 1_000_003 + BLOCK_TOKENS))
        yield (
            arrival.at_s / speed,
            min(arrival.output_length, MAX_TOKENS),
            GenerateRequest(
                f"r{number}",
                ids[: arrival.input_length].tobytes(),
                SamplingParams(max_tokens=MAX_TOKENS),
                slo=slo,
            ),
        )
