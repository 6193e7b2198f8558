"""Made-up sessions of coding agents: long prompts that grow by a little with every turn, and pauses for tools between.

Sizes are those reported of agents in use (vllm-project/vllm #57103): a median of 43 turns, at whose end the prompt
has 142,000 tokens, 444 tokens of answer, and 96 % of each prompt was sent the turn before.

Pauses are those of TraceLab (Zhu et al., 2026, arXiv:2606.30560: 4,300 sessions of Claude Code and Codex): of all calls
half take up to 0.3 s, nine in ten up to 13.6 s, 99 in a hundred up to 3.6 min; reading a file 36 ms in the median,
editing one 95 ms, a shell command 0.4 s. A user comes in every eighth turn, after 1.4 min in the median and within 21
min nine times in ten. Here each kind of tool is log-normal, with shares and spreads that give these figures together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS, Arrival

AGENTS = "agents"
KEYS = ("rate", "turns", "isl", "osl", "most", "pause", "leave", "model")
BLOCKS_A_SESSION = 1 << 20
MAX_TURNS = 1000
USER_EVERY = 8  # turns
ANSWER: tuple[str, ...] = ()


class ToolKind(NamedTuple):
    """`share` of the calls; pauses are log-normal with this median and sigma."""

    name: str
    share: float
    median_s: float
    sigma: float


TOOLS = (
    ToolKind("read", 0.25, 0.036, 1.0),
    ToolKind("edit", 0.15, 0.095, 1.0),
    ToolKind("shell", 0.5, 0.41, 2.2),
    ToolKind("wait", 0.1, 30.0, 1.3),  # for tests, builds and other agents
)
USER_MEDIAN_S, USER_SIGMA = 84.0, 2.1  # until the user writes what comes next


@dataclass(frozen=True, slots=True)
class AgentMix:
    """Sessions begin at `rate_rps`, Poisson. A prompt begins with `shared_tokens` that all have (system prompt, tools)
    and grows by `new_tokens` (median) a turn, of which the answer before is a part, until it has `most_tokens`. A turn
    is the last of its session with the probability `leave`, without a sign of that. Pauses are `pause` times as long
    as in the table."""

    rate_rps: float = 0.05
    num_turns: int = 43
    new_tokens: int = 3000
    output_tokens: int = 444
    most_tokens: int = 120_000
    pause: float = 1.0
    leave: float = 0.005
    shared_tokens: int = 14_000
    model: str = ""

    def __post_init__(self) -> None:
        for key, value in (("rate", self.rate_rps), ("pause", self.pause)):
            if not 0 < value < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, got {value}")
        for key, number in (("turns", self.num_turns), ("isl", self.new_tokens), ("osl", self.output_tokens)):
            if not 1 <= number <= 1_000_000:
                raise ValueError(f"{key} must be 1 to 1000000, got {number}")
        if not self.shared_tokens <= self.most_tokens <= 10_000_000:
            raise ValueError(f"most must be {self.shared_tokens} to 10000000 tokens, got {self.most_tokens}")
        if not 0 <= self.leave <= 1:
            raise ValueError(f"leave must be 0 to 1, got {self.leave}")

    @property
    def has_shared_blocks(self) -> bool:
        return True

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        rng = random.Random(seed)
        at_s, number = 0.0, 0
        while True:
            at_s += rng.expovariate(self.rate_rps)
            number += 1
            yield self._session(random.Random(f"{seed} {number}"), at_s, number)

    def _session(self, rng: random.Random, at_s: float, number: int) -> Arrival:
        """The first turn, which all others follow."""
        num_turns = min(max(round(_log_normal(rng, self.num_turns, 0.7)), 1), MAX_TURNS)
        length = self.shared_tokens + round(_log_normal(rng, self.new_tokens, 0.7))
        turns: list[tuple[float, int, int, tuple[str, ...]]] = []
        pause_s = at_s
        while len(turns) < num_turns and length <= self.most_tokens:
            output = max(round(_log_normal(rng, self.output_tokens, 0.8)), 1)
            tools, next_s = self._call(rng, len(turns))
            turns.append((pause_s, length, output, tools))
            if rng.random() < self.leave:
                break
            pause_s = next_s
            length += max(round(_log_normal(rng, self.new_tokens, 0.7)), output + 1)
        made: Arrival | None = None
        num_shared, first = self.shared_tokens // BLOCK_TOKENS, number * BLOCKS_A_SESSION
        for pause_s, length, output, tools in reversed(turns):
            num_blocks = -(-length // BLOCK_TOKENS)
            blocks = (*range(min(num_shared, num_blocks)), *range(first + num_shared, first + num_blocks))
            made = Arrival(
                pause_s, length, output, blocks, "agents", f"agent{number}", self.model, tools=tools, then=made
            )
        assert made is not None
        return made

    def _call(self, rng: random.Random, turn: int) -> tuple[tuple[str, ...], float]:
        """The tools that the answer of a turn calls, and how long they take."""
        if turn % USER_EVERY == USER_EVERY - 1:
            return ANSWER, self.pause * _log_normal(rng, USER_MEDIAN_S, USER_SIGMA)
        tool = rng.choices(TOOLS, [tool.share for tool in TOOLS])[0]
        return (tool.name,), self.pause * _log_normal(rng, tool.median_s, tool.sigma)


def parse_agents(text: str) -> AgentMix:
    """Parses `agents`, with values such as `agents,rate=0.1,turns=20,pause=2`. Raises ValueError that names the key."""
    values: dict[str, float] = {}
    model = ""
    for pair in text.split(",")[1:]:
        key, _, value = pair.partition("=")
        if key not in KEYS:
            raise ValueError(f"{key!r} is none of {', '.join(KEYS)}")
        if key == "model":
            model = value
            continue
        try:
            values[key] = float(value)
        except ValueError:
            raise ValueError(f"{key} must be a number, got {value!r}") from None
        if not math.isfinite(values[key]):
            raise ValueError(f"{key} must be finite, got {value!r}")
    plain = AgentMix()
    return AgentMix(
        values.get("rate", plain.rate_rps),
        int(values.get("turns", plain.num_turns)),
        int(values.get("isl", plain.new_tokens)),
        int(values.get("osl", plain.output_tokens)),
        int(values.get("most", plain.most_tokens)),
        values.get("pause", plain.pause),
        values.get("leave", plain.leave),
        model=model,
    )


def _log_normal(rng: random.Random, median: float, sigma: float) -> float:
    return rng.lognormvariate(math.log(median), sigma)
