"""Made-up workloads: prompts and answers of given lengths, arriving at a given rate, evenly or in bursts, for one model
or several."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from operator import attrgetter
from typing import Protocol

from slipstream.cluster.tools.workload.agents import AGENTS, parse_agents
from slipstream.cluster.tools.workload.arrival import Arrival

MAX_LENGTH = 1_000_000  # tokens
BURST_S = 10.0
SEED_STEP = 1_000_003  # between the mixes of one workload, so that they share no random numbers
MAX_TURNS = 1000
MIN_RATE_RPS, MAX_RATE_RPS, MAX_BURST = 1e-6, 1e9, 1000.0  # beyond these, times lose their precision


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of request. Lengths are log-normal with the given medians in tokens; `spread` is their sigma (0: all
    have the same length). `share` is relative to the other kinds of the mix. `model` is the name that they ask for."""

    name: str
    share: float
    input_length: int
    output_length: int
    spread: float = 0.5
    model: str = ""


class ArrivalSource(Protocol):
    @property
    def has_shared_blocks(self) -> bool:
        """Whether some prompts are known to begin alike."""

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """An endless series of arrivals, the same for the same seed."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Poisson arrivals at `rate_rps`. With `burst`, the rate goes up and down by that factor: time is cut into slots of
    `every_s` seconds, and of `turns` slots in a row it goes up in number `turn` (from 0), and down in the others."""

    kinds: tuple[RequestKind, ...]
    rate_rps: float = 4.0
    burst: float = 1.0
    every_s: float = BURST_S
    turns: int = 2
    turn: int = 1

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("kinds must not be empty")
        if not 0 < self.rate_rps < math.inf:
            raise ValueError(f"rate must be over 0, got {self.rate_rps}")
        if not MIN_RATE_RPS <= self.rate_rps <= MAX_RATE_RPS:
            raise ValueError(f"rate must be {MIN_RATE_RPS:g} to {MAX_RATE_RPS:g} a second, got {self.rate_rps}")
        if not 1 <= self.burst <= MAX_BURST:
            raise ValueError(f"burst must be 1 to {MAX_BURST:g}, got {self.burst}")
        if not 0 < self.every_s < math.inf:
            raise ValueError(f"every must be over 0 s and finite, got {self.every_s}")
        if not (2 <= self.turns <= MAX_TURNS and 0 <= self.turn < self.turns):
            raise ValueError(f"turn must be 1/2 to {MAX_TURNS}/{MAX_TURNS}, got {self.turn + 1}/{self.turns}")
        for kind in self.kinds:
            for what, tokens in (("isl", kind.input_length), ("osl", kind.output_length)):
                if not 1 <= tokens <= MAX_LENGTH:
                    raise ValueError(f"{what} must be 1 to {MAX_LENGTH} tokens, got {tokens}")
            if not 0 <= kind.spread <= 3:
                raise ValueError(f"spread must be 0 to 3, got {kind.spread}")
            if not 0 < kind.share < math.inf:
                raise ValueError(f"share must be over 0, got {kind.share}")

    @property
    def has_shared_blocks(self) -> bool:
        return False

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        rng = random.Random(seed)
        shares = [kind.share for kind in self.kinds]
        at_s = 0.0
        while True:
            is_up = int(at_s / self.every_s) % self.turns == self.turn
            rate = self.rate_rps * (self.burst if is_up else 1.0 / self.burst)
            at_s += rng.expovariate(rate)
            kind = self.kinds[0] if len(shares) == 1 else rng.choices(self.kinds, shares)[0]
            yield Arrival(
                at_s,
                _length(rng, kind.input_length, kind.spread),
                _length(rng, kind.output_length, kind.spread),
                tenant=kind.name if len(shares) > 1 else "",
                model=kind.model,
            )


@dataclass(frozen=True, slots=True)
class JointMix:
    """Several mixes at once, each with arrivals of its own."""

    mixes: tuple[ArrivalSource, ...]

    @property
    def has_shared_blocks(self) -> bool:
        return any(mix.has_shared_blocks for mix in self.mixes)

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        each = [mix.arrivals(seed + number * SEED_STEP) for number, mix in enumerate(self.mixes)]
        return merge(*each, key=attrgetter("at_s"))


def _length(rng: random.Random, median: int, spread: float) -> int:
    if not spread:
        return median
    return min(max(round(rng.lognormvariate(math.log(median), spread)), 1), MAX_LENGTH)


CHAT = RequestKind("chat", 0.7, 300, 200)
DOCUMENT = RequestKind("document", 0.3, 4000, 60)
REASONING = RequestKind("reasoning", 0.3, 500, 2000)
KEYS = ("isl", "osl", "rate", "burst", "every", "turn", "spread", "model")
MIXES: dict[str, Mix] = {
    "chat": Mix((CHAT,)),
    "documents": Mix((DOCUMENT,)),
    "reasoning": Mix((REASONING,)),
    "mixed": Mix((CHAT, DOCUMENT), burst=2.0),
}


def parse_mixes(text: str) -> ArrivalSource:
    """Parses a mix, or several that come at once, as in `chat,model=a+documents,rate=2,model=b`. Raises ValueError."""
    mixes = [parse_agents(part) if part.partition(",")[0] == AGENTS else parse_mix(part) for part in text.split("+")]
    return mixes[0] if len(mixes) == 1 else JointMix(tuple(mixes))


def parse_mix(text: str) -> Mix:
    """Parses the name of one of `MIXES`, or values such as `isl=2000,osl=200,rate=10,burst=1,spread=0.5`, or both, as
    in `mixed,rate=10`. Raises ValueError that names the bad key."""
    name, *pairs = text.split(",")
    if "=" in name:
        name, pairs = "", [name, *pairs]
    if name and name not in MIXES:
        raise ValueError(f"{name!r} is neither a file nor one of {', '.join(MIXES)}")
    values: dict[str, float] = {}
    model, (turn, turns) = "", (1, 2)
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in KEYS:
            raise ValueError(f"{key!r} is none of {', '.join(KEYS)}")
        if key == "model":
            model = value
            continue
        if key == "turn":
            turn, turns = _turn(value)
            continue
        try:
            values[key] = float(value)
            if not math.isfinite(values[key]):
                raise ValueError
        except ValueError:
            raise ValueError(f"{key} must be a number, got {value!r}") from None
    base = MIXES[name] if name else MIXES["chat"]
    kinds = base.kinds
    if "isl" in values or "osl" in values or "spread" in values:
        if len(kinds) > 1:
            raise ValueError(f"{name} has several kinds of requests: isl, osl and spread are for one")
        kind = kinds[0]
        kinds = (
            RequestKind(
                kind.name,
                1.0,
                int(values.get("isl", kind.input_length)),
                int(values.get("osl", kind.output_length)),
                values.get("spread", kind.spread),
            ),
        )
    if model:
        kinds = tuple(replace(kind, model=model) for kind in kinds)
    rate, burst = values.get("rate", base.rate_rps), values.get("burst", base.burst)
    return Mix(kinds, rate, burst, values.get("every", base.every_s), turns, turn)


def _turn(text: str) -> tuple[int, int]:
    """`2/5`, the second of five slots, as its number from 0 and the number of slots."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and len(text) < 20):
        raise ValueError(f"turn must be such as 2/5, the second of five, got {text!r}")
    return int(number) - 1, int(count)
