"""What the server counted during a level: the statistics extension, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Of all versions of a model. Times are sums in nanoseconds: those of stages over requests. `num_inferences` counts
    rows."""

    num_inferences: int = 0
    num_executions: int = 0
    num_requests: int = 0
    num_cache_hits: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0

    @classmethod
    def of(cls, model_stats: Iterable[Mapping[str, Any]]) -> ServerCounts:
        """Numbers may be texts."""
        total = cls()
        for one in model_stats:
            stats = one.get("inference_stats", {})
            success, hits = stats.get("success", {}), stats.get("cache_hit", {})
            stages = {f"{name}_ns": int(stats.get(name, {}).get("ns", 0)) for name in STAGES}
            total = total.plus(
                cls(
                    num_inferences=int(one.get("inference_count", 0)),
                    num_executions=int(one.get("execution_count", 0)),
                    num_requests=int(success.get("count", 0)),
                    num_cache_hits=int(hits.get("count", 0)),
                    request_ns=int(success.get("ns", 0)),
                    **stages,
                )
            )
        return total

    def plus(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(*(a + b for a, b in zip(self._values(), other._values(), strict=True)))

    def minus(self, earlier: ServerCounts) -> ServerCounts:
        return ServerCounts(*(a - b for a, b in zip(self._values(), earlier._values(), strict=True)))

    @property
    def rows_a_batch(self) -> float | None:
        return self.num_inferences / self.num_executions if self.num_executions else None

    def mean_ms(self, stage: str) -> float | None:
        """Of a request: `request`, or a stage."""
        total_ns: int = getattr(self, f"{stage}_ns")
        return total_ns / self.num_requests / 1e6 if self.num_requests else None

    def json(self) -> dict[str, Any]:
        return {
            "inference_count": self.num_inferences,
            "execution_count": self.num_executions,
            "success_count": self.num_requests,
            "cache_hit_count": self.num_cache_hits,
            "rows_per_execution": self.rows_a_batch,
            **{f"{stage}_ms": self.mean_ms(stage) for stage in ("request", *STAGES)},
        }

    def _values(self) -> list[int]:
        return [getattr(self, field.name) for field in fields(self)]
