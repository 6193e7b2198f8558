"""What came of the requests of a campaign."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

SLOW_S = 5.0  # answers that took longer are listed


@dataclass(slots=True)
class TensorAccount:
    """`ends` counts by kind and end, `errors` by text; `wrong` says what must not be."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_s: dict[str, float] = field(default_factory=dict)
    slow: list[tuple[float, str, float]] = field(default_factory=list)  # began when, what, took how long

    @property
    def num_requests(self) -> int:
        return self.ends.total()

    def end(self, kind: str, how: str, took_s: float = 0.0, at_s: float = 0.0) -> None:
        self.ends[f"{kind} {how}"] += 1
        self.slowest_s[kind] = max(took_s, self.slowest_s.get(kind, 0.0))
        if took_s >= SLOW_S:
            self.slow.append((round(at_s, 1), kind, round(took_s, 1)))

    def fail(self, kind: str, error: Exception, *, is_allowed: bool, at_s: float) -> None:
        text = re.sub(r"\s+", " ", f"{kind}: {type(error).__name__} {error}")[:300]
        self.errors[re.sub(r"\d+", "N", text)[:160]] += 1
        self.end(kind, "failed")
        if not is_allowed:
            self.wrong.append(f"at {at_s:.1f} s {text}")
