"""A workload to run: a trace or a mix, at a given speed, with a given number of requests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from pathlib import Path

from slipstream.cluster.tools.workload.agents import AGENTS
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.cluster.tools.workload.mix import MIXES, ArrivalSource, parse_mixes
from slipstream.cluster.tools.workload.trace_file import read_trace

DEFAULT_MIX_REQUESTS = 1000
MIN_SPEED, MAX_SPEED = 1e-6, 1e9  # beyond these, times lose their precision


@dataclass(frozen=True, slots=True)
class Workload:
    """Iterating gives `num_requests` arrivals one by one, however many there are, and the same ones every time.

    A trace that is shorter is replayed from its beginning, with hash ids and sessions that no replay before
    had: what was shared in the trace is shared within each replay and not between them. `speed` 2 brings requests twice
    as fast; lengths stay. `model`: only the requests of that model, out of `num_requests` of all models.
    """

    name: str
    num_requests: int
    speed: float = 1.0
    trace: tuple[Arrival, ...] = ()
    mix: ArrivalSource | None = None
    seed: int = 0
    model: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ValueError(f"speed must be over 0, got {self.speed}")
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise ValueError(f"speed must be {MIN_SPEED:g} to {MAX_SPEED:g}, got {self.speed}")
        if self.num_requests < 1:
            raise ValueError(f"requests must be at least 1, got {self.num_requests}")
        if bool(self.trace) == (self.mix is not None):
            raise ValueError("a workload is either a trace or a mix")

    @property
    def has_shared_blocks(self) -> bool:
        """Whether some prompts are known to begin alike."""
        if self.mix is not None:
            return self.mix.has_shared_blocks
        return any(arrival.blocks for arrival in self.trace)

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[Arrival]:
        arrivals = self.of_all()
        return arrivals if self.model is None else (a for a in arrivals if a.model == self.model)

    def of_all(self) -> Iterator[Arrival]:
        """The requests of all models."""
        return islice(self._endless(), self.num_requests)

    def of_model(self, name: str) -> Workload:
        """The requests of one model, at the times that they have beside the others."""
        return replace(self, model=name)

    def within(self, seconds: float) -> Workload:
        """The requests of the first seconds, at least one."""
        number = sum(1 for _ in takewhile(lambda a: a.at_s <= seconds, self._endless()))
        return replace(self, num_requests=max(number, 1))

    def _endless(self) -> Iterator[Arrival]:
        if self.mix is None:
            yield from self._replays()
            return
        for a in self.mix.arrivals(self.seed):
            yield faster(a, self.speed) if self.speed != 1.0 else a

    @property
    def last_s(self) -> float:
        """When the last request arrives."""
        if self.mix is None:
            replay, at = divmod(self.num_requests - 1, len(self.trace))
            return (replay * self._period_s + self.trace[at].at_s) / self.speed
        last = deque(self, maxlen=1)
        return last[0].at_s if last else 0.0

    @property
    def _period_s(self) -> float:
        """The length of one replay of the trace, including a gap of the usual length before the next one."""
        span_s = self.trace[-1].at_s
        return span_s + span_s / max(len(self.trace) - 1, 1)

    def _replays(self) -> Iterator[Arrival]:
        trace, speed, period_s = self.trace, self.speed, self._period_s
        num_blocks = 1 + max((max(a.blocks) for a in trace if a.blocks), default=0)
        for replay in count():
            start_s, first = replay * period_s, replay * num_blocks
            for a in trace:
                yield Arrival(
                    (start_s + a.at_s) / speed,
                    a.input_length,
                    a.output_length,
                    tuple([first + block for block in a.blocks]) if a.blocks else (),
                    a.tenant,
                    f"{a.session}/{replay}" if a.session and replay else a.session,
                    a.model,
                )


def faster(arrival: Arrival, speed: float) -> Arrival:
    """A request, and those that follow it, with times that are so many times as short."""
    turns = [arrival]
    while turns[-1].then is not None:
        turns.append(turns[-1].then)
    made: Arrival | None = None
    for turn in reversed(turns):
        made = replace(turn, at_s=turn.at_s / speed, then=made)
    assert made is not None
    return made


def open_workload(source: str, num_requests: int | None = None, speed: float = 1.0, seed: int = 0) -> Workload:
    """Opens a workload. `source` is the path of a trace, the name of a mix, or the values of one or of several
    (`parse_mixes`). Without `num_requests`, a trace is used as it is. Raises TraceError, or ValueError that says what
    is wrong."""
    path = Path(source).expanduser()
    if source.partition(",")[0] not in (*MIXES, AGENTS) and ("=" not in source or _exists(path)):
        if not source or not _exists(path):
            raise ValueError(f"{source!r} is neither a file nor one of {', '.join((*MIXES, AGENTS))}")
        trace = tuple(read_trace(path, num_requests))
        return Workload(path.name, num_requests or len(trace), speed, trace=trace)
    return Workload(source, num_requests or DEFAULT_MIX_REQUESTS, speed, mix=parse_mixes(source), seed=seed)


def _exists(path: Path) -> bool:
    """Whether the path exists. False also if the name is too long for a file."""
    try:
        return path.exists()
    except OSError:
        return False
