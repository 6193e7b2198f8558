"""Measures how prompts passed through a cluster by the router's records, which show stages that a client cannot see.

Lone prompts show how long messages, HTTP and the hand-off take. Prompts beside streams show how much longer a prompt
takes while others decode on the same cores, which no measurement of either alone could show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipstream.cluster.tools.bench.load.measures import percentile
from slipstream.cluster.tools.bench.profiling.isolated_runs import IsolatedPrompts

NEEDED = 8  # timelines of a kind that are needed for a figure
MAX_STRETCH = 8.0
MAX_NOISE = 0.25  # 0.18 was measured with nothing else running; more is caused by other programs


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """When one request came to each of its stages, in seconds since 1970. `begun_s` is when its worker got the message
    to compute the prompt, `landed_s` when all pages had arrived at its decode worker. (That and `reserved_s` are None
    if the prompt was computed there.)"""

    worker: str
    num_tokens: int
    queued_s: float
    placed_s: float
    reserved_s: float | None
    first_token_s: float
    landed_s: float | None
    ended_s: float

    @property
    def is_remote(self) -> bool:
        return self.reserved_s is not None

    @property
    def begun_s(self) -> float:
        return self.placed_s if self.reserved_s is None else self.reserved_s

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RequestTimeline | None:
        """The timeline in an answer of `GET /v1/requests/ID/explain`; None if the request failed, was retried, or was
        partly cached."""
        at = record["timeline"]
        if record["num_attempts"] != 1 or record["num_cached_tokens"]:
            return None
        if any(at[phase] is None for phase in ("placed", "first_token", "finished")):
            return None
        queued_s = datetime.fromisoformat(record["queued_at"]).timestamp()
        is_remote = record["prefill"] is not None and at["reserved"] is not None and at["decode"] is not None
        return cls(
            worker=record["prefill"] or record["decode"],
            num_tokens=int(record["num_prompt_tokens"]),
            queued_s=queued_s,
            placed_s=queued_s + at["placed"],
            reserved_s=queued_s + at["reserved"] if is_remote else None,
            first_token_s=queued_s + at["first_token"],
            landed_s=queued_s + at["decode"] if is_remote else None,
            ended_s=queued_s + at["finished"],
        )


@dataclass(frozen=True, slots=True)
class RequestTimelines:
    """Those of prompts that came one at a time, and of prompts that came while others were decoding."""

    lone: Sequence[RequestTimeline] = ()
    beside: Sequence[RequestTimeline] = ()


@dataclass(frozen=True, slots=True)
class Overheads:
    """The seconds that one message between router and worker takes, that a client waits for a hand-off, and that pass
    between client and router; and the number of messages before a first token."""

    message_s: float
    exposed_s: float
    client_s: float
    num_messages: int


def overheads(lone: Sequence[RequestTimeline], prompts: Sequence[IsolatedPrompts]) -> Overheads | None:
    """The overheads of some prompts; `prompts` are the same ones as seen by their client. None if too few of them were
    prefilled remotely."""
    remote = [one for one in lone if one.is_remote]
    if len(remote) < NEEDED:
        return None
    reserve_s = statistics.median(one.reserved_s - one.placed_s for one in remote if one.reserved_s is not None)
    exposed_s = statistics.median(one.landed_s - one.first_token_s for one in remote if one.landed_s is not None)
    beyond = []
    for length in prompts:
        same = [one.first_token_s - one.queued_s for one in lone if one.num_tokens == round(length.num_tokens)]
        if same:
            beyond.append(length.ttft_s - statistics.median(same))
    if not beyond:
        return None
    client_s = max(statistics.median(beyond), 0.0)
    return Overheads(0.5 * reserve_s, max(exposed_s, 0.0), client_s, 4 if 2 * len(remote) >= len(lone) else 2)


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """Beside streams, a prompt takes `factor` times as long; single prompts differ from that by `noise`. (It is
    relative, and 0 if too few prompts came while no other one was being computed: those that wait share steps with
    others.)"""

    factor: float
    noise: float


def timeline_span(
    beside: Sequence[RequestTimeline], alone_s: Callable[[int], float], message_s: float
) -> TimelineSpan | None:
    """The stretch of prompts that were computed on another worker than the streams, one after the other; None if there
    were too few."""
    ratios: list[float] = []
    whole_s = whole_alone_s = 0.0
    num_seen = 0
    free_s: dict[str, float] = {}
    for one in sorted((one for one in beside if one.is_remote), key=lambda one: one.begun_s):
        arrived_s = one.begun_s + message_s
        begun_s = max(arrived_s, free_s.get(one.worker, 0.0))
        ended_s = free_s[one.worker] = one.first_token_s - message_s
        middle_s = 0.5 * (begun_s + ended_s)
        if ended_s > begun_s and any(
            (other.landed_s or other.first_token_s) <= middle_s < other.ended_s for other in beside
        ):
            num_seen += 1
            if begun_s == arrived_s:
                ratios.append((ended_s - begun_s) / alone_s(one.num_tokens))
            whole_s += ended_s - begun_s
            whole_alone_s += alone_s(one.num_tokens)
    if num_seen < NEEDED:
        return None
    factor = min(max(whole_s / whole_alone_s, 1.0), MAX_STRETCH)
    if len(ratios) < NEEDED:
        return TimelineSpan(factor, 0.0)
    logs = [math.log(ratio) for ratio in ratios]
    noise = 0.5 * (percentile(logs, 0.84) - percentile(logs, 0.16))  # a standard deviation that is robust to outliers
    return TimelineSpan(factor, min(noise, MAX_NOISE))
