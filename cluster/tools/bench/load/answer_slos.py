"""The limits of a good answer, in AIPerf's syntax: `time_to_first_token:500 inter_token_latency:50`, in
milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer

NAMES = {
    "ttft": "time_to_first_token",
    "itl": "inter_token_latency",
    "tpot": "inter_token_latency",
    "latency": "request_latency",
    "e2el": "request_latency",
}
METRICS = ("time_to_first_token", "inter_token_latency", "request_latency")


@dataclass(frozen=True, slots=True)
class Slos:
    """`limits_ms` by metric; empty if none were given. If an answer has no such metric (the inter-token latency of a
    single token), the limit counts as kept."""

    limits_ms: Mapping[str, float]

    @classmethod
    def parse(cls, parts: Iterable[str]) -> Slos:
        """Parses the limits. Raises BenchError that names the bad part."""
        limits: dict[str, float] = {}
        for part in (piece for text in parts for piece in text.replace(",", " ").split()):
            name, _, value = part.partition(":")
            metric = NAMES.get(name, name)
            if metric not in METRICS:
                known = ", ".join((*METRICS, *NAMES))
                raise BenchError(f"--goodput: {name!r} is no metric for it; there are {known}")
            try:
                limits[metric] = float(value)
            except ValueError:
                limits[metric] = math.nan
            if not 0 < limits[metric] < math.inf:
                raise BenchError(f"--goodput: {part!r}: expected {name}:MILLISECONDS, a number over 0")
        return cls(limits)

    def __bool__(self) -> bool:
        return bool(self.limits_ms)

    def __str__(self) -> str:
        return " ".join(f"{metric}:{limit:g}" for metric, limit in self.limits_ms.items())

    def is_kept(self, answer: ClientAnswer) -> bool:
        measured = {
            "time_to_first_token": answer.ttft_s,
            "inter_token_latency": answer.itl_s,
            "request_latency": answer.latency_s,
        }
        return answer.is_good and all(
            (seconds := measured[metric]) is None or seconds * 1e3 <= limit for metric, limit in self.limits_ms.items()
        )


def is_slo(text: str) -> bool:
    """Whether a text is a limit: `itl:50` is one, `localhost:50` is not."""
    name = text.partition(":")[0]
    return ":" in text and (name in NAMES or name in METRICS)
