"""The simulator's profile of a real cluster: measured with requests that are not part of the comparison.

Waves of answers, of one length and without any prompt in between, say what decode steps take; lone prompts, by the
router's record of each, what prompts take in either role, what messages take, and what clients wait beyond all that:
HTTP, token ids as JSON, threads that are woken up. So every time is that of a worker that has the machine for itself;
that workers take the cores from each other is the simulator's to say (`shared_cores`).
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.simulation_check.measured_load import Seen, Target, in_turn
from slipstream.cluster.tools.bench.profiling.profile_fit import model_shape, unmeasured
from slipstream.cluster.tools.bench.profiling.relative_fit import relative_fit
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile, WorkerRoleProfile
from slipstream.cluster.tools.workload.arrival import Arrival
from slipstream.router.protocol.messages import Role
from slipstream.router.registry.service_times import prefill_features

Get = Callable[[str], tuple[int, bytes]]

LONE_PROMPTS = (64, 128, 256, 512, 1024, 2048, 3000)  # shorter ones take hardly longer than their messages
LONE_TIMES = 5
LONE_PAUSE_S = 0.25  # a lone prompt finds sleeping threads and cold caches, which one right behind another does not
CONCURRENCY = (1, 2, 4, 8, 16)
WAVE_PROMPTS = (16, 512)
WAVES = 3  # of each concurrency and length
ANSWER_TOKENS = 64
LINK_BYTES_PER_S = 1e9  # not measured: pages leave while the prompt is computed, and what comes after is the latency


@dataclass(frozen=True, slots=True)
class LonePrompt:
    """As the router's record has it; `front_s` is what the client waited longer than the router did."""

    role: Role
    num_tokens: int
    reserve_s: float | None
    prefill_s: float
    exposed_s: float | None
    front_s: float


@dataclass(frozen=True, slots=True)
class Wave:
    """Answers of equal length that decode together: seconds between two tokens."""

    num_seqs: int
    context_tokens: float
    step_s: float


def calibrate(get: Get, target: Target, model_dir: Path) -> WorkerProfile:
    """A profile of what runs behind `target`. Takes about 25 seconds on two cores."""

    def ask(lengths: Sequence[int], num_output: int, concurrency: int, seed: int, pause_s: float = 0.0) -> list[Seen]:
        arrivals = [Arrival(0.0, length, num_output) for length in lengths]
        return asyncio.run(in_turn(target, arrivals, seed, concurrency, pause_s))

    ask([600, 100, 1200, 30, 900, 300] * 2, 16, 3, seed=1)
    reported = json.loads(get("/cluster/profile")[1])
    longest = int(reported["roles"][0]["max_model_len"])
    waves = []
    for number in range(WAVES):
        for concurrency in CONCURRENCY:
            for length in WAVE_PROMPTS:
                seen = ask([length] * concurrency, ANSWER_TOKENS, concurrency, seed=100 * number + concurrency)
                if (wave := wave_of(seen, length)) is not None:
                    waves.append(wave)
    lengths = [length for length in LONE_PROMPTS if length < longest] * LONE_TIMES
    lone = [
        _lone(get, one, length)
        for one, length in zip(ask(lengths, 2, 1, seed=2, pause_s=LONE_PAUSE_S), lengths, strict=True)
    ]
    return profile_from(reported["roles"], waves, lone, model_dir)


def wave_of(seen: Sequence[Seen], num_prompt: int) -> Wave | None:
    """While all of them decode: from the last first token to the first end. None where the first had ended by then, as
    on a machine that others use."""
    gaps = [gap for one in seen for gap in one.gaps_between(_last_begin(seen), _first_end(seen))]
    if not gaps:
        return None
    return Wave(len(seen), len(seen) * (num_prompt + 0.5 * ANSWER_TOKENS), statistics.median(gaps))


def _last_begin(seen: Sequence[Seen]) -> float:
    return max(one.first_s for one in seen)


def _first_end(seen: Sequence[Seen]) -> float:
    return min(one.ended_s for one in seen)


def _lone(get: Get, seen: Seen, num_tokens: int) -> LonePrompt:
    record = json.loads(get(f"/v1/requests/{seen.request_id}/explain")[1])
    return lone_prompt(record, num_tokens, seen.ttft_s)


def lone_prompt(record: dict[str, Any], num_tokens: int, ttft_s: float) -> LonePrompt:
    at = record["timeline"]
    is_remote = record["prefill"] is not None
    return LonePrompt(
        role="prefill" if is_remote else "decode",
        num_tokens=num_tokens,
        reserve_s=at["reserved"] - at["placed"] if is_remote else None,
        prefill_s=at["first_token"] - (at["reserved"] if is_remote else at["placed"]),
        exposed_s=at["decode"] - at["first_token"] if is_remote else None,
        front_s=ttft_s - at["first_token"],
    )


def profile_from(
    roles: Sequence[dict[str, Any]], waves: Sequence[Wave], lone: Sequence[LonePrompt], model_dir: Path
) -> WorkerProfile:
    sizes = {role["role"]: role for role in roles}
    lengths = {one.num_tokens for one in lone}
    reserve_s = [one.reserve_s for one in lone if one.reserve_s is not None]
    exposed_s = [one.exposed_s for one in lone if one.exposed_s is not None]
    message_s = 0.5 * statistics.median(reserve_s) if reserve_s else 1e-3
    wave_features = [(1.0, wave.num_seqs, wave.context_tokens) for wave in waves]
    decode = relative_fit(wave_features, [wave.step_s for wave in waves])

    def timed(role: Role) -> WorkerRoleProfile:
        size = unmeasured(sizes[role])
        own = [one for one in lone if one.role == role]
        if not lengths <= {one.num_tokens for one in own}:
            own = list(lone)  # prompts of some lengths do not say what others take
        features = [prefill_features(one.num_tokens, 0, size.max_step_tokens) for one in own]
        prefill = relative_fit(features, [max(one.prefill_s - 2 * message_s, 1e-4) for one in own])
        return size.timed(decode, prefill)

    num_layers, kv_bytes = model_shape(model_dir)
    return WorkerProfile(
        name="local",
        source="waves of answers and lone prompts on the running cluster",
        prefill=timed("prefill"),
        decode=timed("decode"),
        page_tokens=int(sizes["decode"]["page_tokens"]),
        num_pages=int(sizes["decode"]["num_pages"]),
        max_model_len=int(sizes["decode"]["max_model_len"]),
        num_layers=num_layers,
        kv_bytes_per_token=kv_bytes or 1,
        link_bytes_per_s=LINK_BYTES_PER_S,
        link_latency_s=max(statistics.median(exposed_s), 0.0) if exposed_s else 1e-3,
        message_s=message_s,
        client_s=max(statistics.median(one.front_s for one in lone), 0.0),
        workers_per_host=sum(int(role["num_workers"]) for role in roles),
        gpus=0,
        shared_cores=True,
    )
