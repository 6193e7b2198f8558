"""Gaps between the tokens of running streams while long prompts arrive, by placement, in virtual time.

    python scripts/bench/placement/stream_gaps.py

The workers are those of `scripts/bench/placement/bench_placement.py`, one of each role;
`scripts/bench/serving/bench_stall.py` measures real ones.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.placement.bench_placement import PROFILE
from scripts.bench.placement.mock_world import World
from slipstream.cluster.tools.bench.load.measures import percentile
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import SamplingParams, pack_ids

NUM_STREAMS, STREAM_TOKENS = 16, 800
LONG_TOKENS, LONG_EVERY_S = 4000, 0.5
SHORT_TOKENS = 64
LINES = {"remote": SHORT_TOKENS, "local": 10**9, "slo": None}


def gaps(line: int | None, with_long: bool) -> tuple[list[float], list[float]]:
    """Of the streams, and the TTFTs of the long prompts."""
    world = World.of(
        DispatchConfig(local_prefill_max_tokens=line),
        [("prefill", replace(PROFILE, max_slots=1024)), ("decode", PROFILE)],
    )
    for number in range(NUM_STREAMS):
        prompt = pack_ids(range(number * 100, number * 100 + SHORT_TOKENS))
        sampling = SamplingParams(max_tokens=2 * STREAM_TOKENS)
        world.submit_at(GenerateRequest(f"s{number}", prompt, sampling), 0.01 * number, STREAM_TOKENS)
    for number in range(16 if with_long else 0):
        prompt = pack_ids(range(10_000 * (number + 1), 10_000 * (number + 1) + LONG_TOKENS))
        request = GenerateRequest(f"l{number}", prompt, SamplingParams(max_tokens=64))
        world.submit_at(request, 1.0 + LONG_EVERY_S * number, 8)
    world.run()
    streams = [gap for name, seen in world.outcomes.items() if name[0] == "s" for gap in seen.gaps_s[20:]]
    return streams, [seen.ttft_s or 0.0 for name, seen in world.outcomes.items() if name[0] == "l"]


def main() -> None:
    alone = percentile(gaps(LINES["local"], False)[0], 0.99)
    print(f"alone: p99 {alone * 1e3:.1f} ms")
    for name, line in LINES.items():
        streams, first = gaps(line, True)
        print(
            f"{name:6}: gap p50 {percentile(streams, 0.5) * 1e3:.1f}, p99 {percentile(streams, 0.99) * 1e3:.1f} ms "
            f"({percentile(streams, 0.99) / alone:.2f}x), longest {max(streams) * 1e3:.0f} ms; "
            f"TTFT of the long prompts p50 {percentile(first, 0.5) * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
