"""Runs and their settings as JSON. What only a cluster of several models has, or one with prices, is left out where it
is not used: the runs of one model tell what they always did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from slipstream.cluster.planner.decision_log import decision_json
from slipstream.cluster.tools.sim.client_outcomes import Outcomes
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_config import SimConfig

OF_MODELS = ("seconds", "models", "budget")  # of the configuration
OF_PLANNER = ("objective", "swap_s")
OF_PROFILE = ("model_swap_s", "price_per_hour")


def config_json(config: SimConfig) -> dict[str, Any]:
    plain, unused = asdict(config), asdict(SimConfig())
    for key in OF_MODELS:
        if plain[key] == unused[key]:
            del plain[key]
    if plain["retention"] == unused["retention"]:
        del plain["retention"]
    for key in OF_PLANNER:
        if plain["planner"][key] == unused["planner"][key]:
            del plain["planner"][key]
    return plain


def profile_json(profile: WorkerProfile) -> dict[str, Any]:
    plain = asdict(profile)
    for key in OF_PROFILE:
        if plain[key] == WorkerProfile.__dataclass_fields__[key].default:
            del plain[key]
    return plain


def run_json(result: RunResult) -> dict[str, Any]:
    outcomes = result.outcomes
    plain = {
        "policy": result.policy,
        "num_prefill": result.split.num_prefill,
        "num_decode": result.split.num_decode,
        "num_requests": len(outcomes),
        "num_good": outcomes.num_good,
        "attainment": result.attainment,
        "goodput_rps": result.goodput_rps,
        "ttft_ms": _distribution(outcomes, outcomes.ttft_s),
        "itl_ms": _distribution(outcomes, outcomes.itl_s),
        "output_tokens_per_s": sum(outcomes.num_output) / max(result.simulated_s, 1e-9),
        "ends": dict(outcomes.ends),
        "placements": dict(result.placements),
        "retries": dict(result.retries),
        "num_preemptions": result.num_preemptions,
        "moves": {"count": result.num_moves, "mean_pause_s": result.pause_s},
        "cached_share": result.cached_share,
        "utilisation": {role: result.utilisation(role) for role in result.worker_s},
        "transfers": {
            "count": result.num_transfers,
            "bytes": result.transfer_bytes,
            "most_in_flight": result.most_transfers,
        },
        "simulated_s": result.simulated_s,
        "samples": [asdict(sample) for sample in result.samples],
        "decisions": [decision_json(decision) for decision in result.decisions],
        "faults": [asdict(fault) for fault in result.faults],
    }
    if result.cost is not None:
        plain["cost"] = {
            "price_per_hour": result.price_per_hour,
            "worker_hours": result.paid_s / 3600.0,
            "total": result.cost,
            "per_million_tokens": result.cost_per_million,
        }
    return plain


def _distribution(outcomes: Outcomes, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles in milliseconds, of the requests that have the value."""
    figures = {"mean": outcomes.mean_ms(values)}
    figures |= {f"p{percent}": value for percent, value in outcomes.percentiles_ms(values).items()}
    return {name: None if math.isnan(value) else value for name, value in figures.items()}
