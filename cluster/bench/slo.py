"""What a good answer has to keep, in AIPerf's form: `time_to_first_token:500 inter_token_latency:50`, milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipstream.cluster.bench.answer import Answer
from slipstream.cluster.bench.target import BenchError

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
    """`limits_ms` by metric; empty: nobody asked. A metric that an answer does not have, as the latency between tokens
    of a single one, is kept."""

    limits_ms: Mapping[str, float]

    @classmethod
    def parse(cls, parts: Iterable[str]) -> Slos:
        """Raises BenchError that names the part."""
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

    def is_kept(self, answer: Answer) -> bool:
        measured = {
            "time_to_first_token": answer.ttft_s,
            "inter_token_latency": answer.itl_s,
            "request_latency": answer.latency_s,
        }
        return answer.is_good and all(
            (seconds := measured[metric]) is None or seconds * 1e3 <= limit for metric, limit in self.limits_ms.items()
        )


def is_slo(text: str) -> bool:
    """`itl:50` is one, `localhost:50` is none."""
    name = text.partition(":")[0]
    return ":" in text and (name in NAMES or name in METRICS)
