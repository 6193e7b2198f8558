"""How true forecasts of answers are, on traces: each is made before its answer is learned.

    python scripts/bench/placement/placement_calibration.py [--traces DIR]

`within` should be the quantile. `loss` is the mean pinball loss in tokens, beside that of the empty forecaster (nothing
is ever learned) and of the whole trace's own quantile, known in advance: less than that takes knowing the class.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.placement.workloads import MAX_TOKENS, Arrival, azure, mooncake
from slipstream.router.requests.output_length import QUANTILES, OutputLengths


def pinball(quantile: float, forecast: float, actual: int) -> float:
    error = actual - forecast
    return quantile * error if error > 0 else (quantile - 1) * error


def score(name: str, arrivals: Sequence[Arrival]) -> None:
    outputs, empty = OutputLengths(), OutputLengths()
    actual = [min(one.output_length, MAX_TOKENS) for one in arrivals]
    for one, length in zip(arrivals, actual, strict=True):
        for forecaster in (outputs, empty):
            forecaster.calibration.score(forecaster.predict("", one.input_length, MAX_TOKENS), length)
        outputs.learn("", one.input_length, length, is_whole=True)
    count = len(actual)
    cuts = statistics.quantiles(actual, n=100, method="inclusive")
    print(f"{name}: {count} answers, p50 {cuts[49]:.0f}, p90 {cuts[89]:.0f}")
    for quantile in QUANTILES:
        known = cuts[round(quantile * 100) - 1]
        print(
            f"  {quantile:.0%}: within {outputs.calibration.num_within[quantile] / count:.3f}, "
            f"loss {outputs.calibration.loss[quantile] / count:.1f}, "
            f"untaught {empty.calibration.loss[quantile] / count:.1f}, "
            f"known quantile {sum(pinball(quantile, known, n) for n in actual) / count:.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibration of forecasts of answers")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    traces = parser.parse_args().traces
    score("azure2023_conv", azure(traces / "azure2023_conv.3000.csv", 3000))
    score("mooncake_conversation", mooncake(traces / "mooncake_conversation.2000.jsonl", 2000))


if __name__ == "__main__":
    main()
