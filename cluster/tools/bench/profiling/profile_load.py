"""The load that makes the workers of a cluster do all kinds of work, so that they can be profiled.

It is designed so that every coefficient is measured: answers at growing concurrency after long and after short prompts
(for a token of context, a sequence, a step), and lone prompts of growing length (for chunks, tokens, pairs of tokens).
Work that is disturbed by nothing else comes last, because the router's fits follow the latest samples: if workers share
cores, prompts make the steps of others longer, which the simulator adds by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from slipstream.cluster.tools.bench.client.conversation import Lengths, Synthetic
from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel

CHAT_TOKENS = 64  # of a chat template
SHORT = 16
PROMPTS = (SHORT, 64, 256, 1024, 4096)
CONCURRENCY = (1, 2, 4, 8, 16, 32)  # per decode worker
MAX_LONG = 8  # streams with a long context; with more, the first would end before the last has its prompt
DECODE_OSL, NUM_WAVES, MIN_STREAMS = 96, 3, 6  # waves of streams per size; the median is over all of them
BESIDE_SEQS, BESIDE_ISL, BESIDE_OSL, NUM_BESIDE = 4, 512, 64, 64  # prompts that come while others decode
NUM_LONE = 48  # prompts per length, because a pool learns from every eighth

PhaseKind = Literal["mixed", "decode", "beside", "prompt"]


@dataclass(frozen=True, slots=True)
class ProfilePhase:
    """A phase of the load. Its kind says what for: `decode` measures steps, `prompt` lone prompts, `beside` prompts
    while others decode, and `mixed` shows the router both at once. `num_seqs` is how many sequences a decode worker has
    meanwhile."""

    kind: PhaseKind
    num_seqs: int
    level: LoadLevel
    extent: Extent
    source: Synthetic


def phases(
    max_model_len: int, max_slots: int, num_workers: int = 1, time_limit_s: float = 6.0
) -> Iterator[ProfilePhase]:
    """The phases of the load, for `num_workers` decode workers of `max_slots` each. Each phase takes `time_limit_s` at
    most, so that a slow machine is not measured for an hour."""
    room = max_model_len - CHAT_TOKENS

    lengths = [isl for isl in PROMPTS if isl + 2 <= room] or [max(room // 2, 1)]
    for isl in lengths[-3:-1]:
        source = Synthetic(Lengths(isl), Lengths(4))
        yield ProfilePhase("mixed", 4, LoadLevel(4), Extent(16, time_limit_s), source)
    for isl in (max(min(room // 2, 1024), 1), SHORT):
        source = Synthetic(Lengths(isl), Lengths(max(min(DECODE_OSL, room - isl), 1)))
        for num_seqs in CONCURRENCY:
            if num_seqs <= (max_slots if isl == SHORT else min(MAX_LONG, max_slots)):
                concurrency = num_seqs * num_workers
                for _ in range(max(NUM_WAVES, MIN_STREAMS // num_seqs)):
                    yield ProfilePhase(
                        "decode", num_seqs, LoadLevel(concurrency), Extent(concurrency, time_limit_s), source
                    )
    num_seqs = min(BESIDE_SEQS, max_slots)
    isl = max(min(room // 2, BESIDE_ISL), 1)
    source = Synthetic(Lengths(isl), Lengths(max(min(BESIDE_OSL, room - isl), 1)))
    extent = Extent(NUM_BESIDE * num_workers, time_limit_s)
    yield ProfilePhase("beside", num_seqs, LoadLevel(num_seqs * num_workers), extent, source)
    for isl in lengths:
        source = Synthetic(Lengths(isl), Lengths(2))
        yield ProfilePhase("prompt", 1, LoadLevel(1), Extent(NUM_LONE, time_limit_s, 1), source)
