"""A load that suits the machine: measured on workers in their slices, before any deployment is judged.

The same rates are nothing to one machine and too much for the next, and then every split is as good, or as bad, as
another. So rates and levels are set by what one worker can do, by a rule that knows of no split's result:

    TTFT      `PATIENCE` times as long as a prompt takes alone
    ITL       `PATIENCE` times as long as a token takes alone
    prompts   `PROMPTS_BUSY` of what all workers but one could compute
    answers   `ANSWERS_BUSY` of the tokens that all workers but one could generate within the ITL level; less, as they
              come from few streams at once, now from more and now from fewer, and landing pages take their part, too
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.elastic.bench_deployment import Deployment
from scripts.bench.elastic.offered_load import Load, Phase, Request, write_requests

PATIENCE = 3.0
PROMPTS_BUSY, ANSWERS_BUSY = 0.75, 0.6
NUM_PROMPTS, NUM_STREAMS = 6, 8
APART_S = 3.0  # of the prompts that are computed one by one
STREAM_TOKENS = 120


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one worker: a prompt until its first token, a step with one stream, and what each further stream adds."""

    prompt_s: float
    step_s: float
    stream_s: float

    def num_streams(self, itl_s: float) -> float:
        """That get a token in so many seconds."""
        return max(1.0 + (itl_s - self.step_s) / self.stream_s, 0.0)


def load_for(speed: Speed, num_workers: int, prompts: Phase, answers: Phase) -> Load:
    """Rounded to two digits, as in the report. The phases' rates are set anew."""
    others = num_workers - 1
    itl_s = PATIENCE * speed.step_s
    prompts_per_s = PROMPTS_BUSY * others / speed.prompt_s
    answers_per_s = ANSWERS_BUSY * others * speed.num_streams(itl_s) / itl_s / answers.osl
    return Load(
        (
            Phase(prompts.name, prompts.seconds, _rounded(prompts_per_s), prompts.isl, prompts.osl),
            Phase(answers.name, answers.seconds, _rounded(answers_per_s), answers.isl, answers.osl),
        ),
        _rounded(PATIENCE * speed.prompt_s * 1e3),
        _rounded(itl_s * 1e3),
    )


def measure(deployment: Deployment, tokenizer: Path, prompts: Phase, answers: Phase, folder: Path) -> Speed:
    """On a deployment with one decode worker without other clients."""
    streams_s = NUM_PROMPTS * APART_S
    requests = [Request(at * APART_S, prompts.isl, prompts.osl) for at in range(NUM_PROMPTS)]
    requests += [Request(streams_s, answers.isl, STREAM_TOKENS) for _ in range(NUM_STREAMS)]
    path = folder / "calibration.jsonl"
    write_requests(requests, path)
    seen = deployment.load(path, tokenizer, ("ttft:1000", "itl:100")).requests
    alone = [one for one in seen if (one["due_s"] or 0.0) < streams_s - APART_S / 2]
    together = [one for one in seen if (one["due_s"] or 0.0) >= streams_s - APART_S / 2]
    step_s = _median(alone, "itl_s")
    return Speed(
        _median(alone, "ttft_s"), step_s, max((_median(together, "itl_s") - step_s) / (NUM_STREAMS - 1), step_s / 100)
    )


def _median(requests: Sequence[dict[str, Any]], key: str) -> float:
    """Raises RuntimeError if none of them got so far."""
    values = [one[key] for one in requests if one[key] is not None and not one["error_kind"]]
    if not values:
        raise RuntimeError(f"no request of {len(requests)} has its {key}: there is nothing to set the load by")
    return statistics.median(values)


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
