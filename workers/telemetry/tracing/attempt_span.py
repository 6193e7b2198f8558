"""A span of a traced attempt, as a worker notes it until it is reported to the router."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.protocol.messages import WorkEvent, WorkSpan

MAX_EVENTS = 32  # of a span; then each two neighbours become one
MAX_ERROR_CHARS = 500


@dataclass(slots=True)
class _Steps:
    """Consecutive steps."""

    num_steps: int
    num_tokens: int
    sequences: int  # of all steps
    began_s: float
    ended_s: float

    def join(self, other: _Steps) -> None:
        self.num_steps += other.num_steps
        self.num_tokens += other.num_tokens
        self.sequences += other.sequences
        self.ended_s = other.ended_s


@dataclass(slots=True)
class AttemptSpan:
    """`figures` and `labels` by their names in the trace, without the prefix that all share."""

    name: str
    began_s: float
    figures: dict[str, float]
    labels: dict[str, str]
    end_s: float = 0.0
    steps: list[_Steps] = field(default_factory=list)
    error: str = ""

    def report(self, now_s: float) -> WorkSpan:
        """The span as it is sent at `now_s`."""
        return WorkSpan(
            self.name,
            now_s - self.began_s,
            now_s - self.end_s,
            tuple((name, float(value)) for name, value in self.figures.items()),
            tuple(self.labels.items()),
            tuple(_event(steps, now_s) for steps in self.steps),
            self.error[:MAX_ERROR_CHARS],
        )


@dataclass(slots=True)
class StepSummary:
    """The steps that computed a span: at most `MAX_EVENTS` groups of equally many steps, however long it takes."""

    max_batch: int = 0
    _groups: list[_Steps] = field(default_factory=list)
    _steps_per_group: int = 1

    def add(self, num_tokens: int, batch: int, began_s: float, ended_s: float) -> None:
        """A step of `batch` sequences computed or sampled so many tokens of this one."""
        self.max_batch = max(self.max_batch, batch)
        step, groups = _Steps(1, num_tokens, batch, began_s, ended_s), self._groups
        if groups and groups[-1].num_steps < self._steps_per_group:
            groups[-1].join(step)
            return
        if len(groups) == MAX_EVENTS:
            self._halve()
        groups.append(step)

    @property
    def has_steps(self) -> bool:
        return bool(self._groups)

    def describe(self, span: AttemptSpan) -> None:
        """Adds what is known of the steps to their span. The queue time is that before the first one."""
        span.steps = self._groups
        if not self._groups:
            return
        num_steps = sum(one.num_steps for one in self._groups)
        span.figures |= {
            "queue_s": max(0.0, self._groups[0].began_s - span.began_s),
            "steps": num_steps,
            "computed_tokens" if span.name == "worker.prefill" else "output_tokens": sum(
                one.num_tokens for one in self._groups
            ),
            "batch.mean": sum(one.sequences for one in self._groups) / num_steps,
            "batch.max": self.max_batch,
        }

    def _halve(self) -> None:
        groups = self._groups
        for place in range(MAX_EVENTS // 2):
            groups[2 * place].join(groups[2 * place + 1])
        del groups[1::2]
        self._steps_per_group *= 2


def _event(steps: _Steps, now_s: float) -> WorkEvent:
    figures = {
        "steps": steps.num_steps,
        "tokens": steps.num_tokens,
        "batch": steps.sequences / steps.num_steps,
        "seconds": steps.ended_s - steps.began_s,
    }
    return WorkEvent("steps", now_s - steps.ended_s, tuple((name, float(value)) for name, value in figures.items()))
