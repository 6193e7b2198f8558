"""Profiles the hardware below a Slipstream cluster.

A short load (`profile_load`) makes the workers do all kinds of work. Its requests show the decode steps and the lone
prompts (`alone`), and the router has fitted the rest (`GET /cluster/profile`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.profiling.isolated_runs import (
    MAX_TIMES_OFF,
    IsolatedRuns,
    prompt_times,
    step_times,
    times_off,
)
from slipstream.cluster.tools.bench.profiling.request_timeline import RequestTimelines, overheads, timeline_span
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile, WorkerRoleProfile
from slipstream.router.registry.service_times import ServiceTimes

MAX_LATENCY_S, MIN_BANDWIDTH, MAX_BANDWIDTH = 1.0, 1e6, 1e12
NEEDED_SAMPLES = 8
LLAMA_8B_KV_BYTES = 131_072  # assumed if it is not known


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is known of a cluster besides measurements. None: not known."""

    model_dir: Path | None
    kv_bytes_per_token: int | None
    start_s: float | None  # that a worker takes to start
    has_gpus: bool
    shares_cores: bool


def profile_of(
    router_profile: dict[str, Any],
    name: str,
    source: str,
    conditions: Conditions,
    alone: IsolatedRuns,
    timelines: RequestTimelines,
) -> WorkerProfile:
    """The profile, from the answer of `/cluster/profile`, the requests' own measurements, and the router's records of
    them, if there are any. Raises BenchError if the router has not measured enough."""
    roles = {role["role"]: role for role in router_profile.get("roles", ())}
    if not roles:
        raise BenchError("the cluster has no workers to tell of")
    times = {name: ServiceTimes.from_dict(role["times"]) for name, role in roles.items()}
    for kind in ("decode", "prefill"):
        if max(role["num_samples"][kind] for role in roles.values()) < NEEDED_SAMPLES:
            raise BenchError(f"the workers reported too few {kind} steps for a profile")
    prefill, decode = roles.get("prefill") or roles["decode"], roles.get("decode") or roles["prefill"]
    page_tokens = int(decode["page_tokens"])
    num_layers, from_config = model_shape(conditions.model_dir)
    kv_bytes = conditions.kv_bytes_per_token or from_config or LLAMA_8B_KV_BYTES
    latency_s, page_s = decode_times(times, "transfer")
    bandwidth = kv_bytes * page_tokens / page_s if page_s > 0 else MAX_BANDWIDTH
    noises = [times[role].noise("decode") for role in times]
    base = WorkerProfile(
        name=name,
        source=source,
        prefill=unmeasured(prefill),
        decode=unmeasured(decode),
        page_tokens=page_tokens,
        num_pages=int(decode["num_pages"]),
        max_model_len=int(decode["max_model_len"]),
        num_layers=num_layers,
        kv_bytes_per_token=kv_bytes,
        link_bytes_per_s=min(max(bandwidth, MIN_BANDWIDTH), MAX_BANDWIDTH),
        link_latency_s=min(latency_s, MAX_LATENCY_S),
        gpus=int(decode["tp"]) if conditions.has_gpus else 0,
        noise=min(min(noises), 1.0),
        shared_cores=conditions.shares_cores,
        workers_per_host=sum(int(role["num_workers"]) for role in roles.values()) if conditions.shares_cores else 1,
    )
    if conditions.start_s is not None:
        base = replace(base, start_s=conditions.start_s)
    is_of_one_kind = prefill["tp"] == decode["tp"]
    profile = with_alone(with_best(base, roles, times), alone, is_of_one_kind)
    return with_timelines(profile, alone, timelines, is_of_one_kind)


def with_best(base: WorkerProfile, roles: dict[str, Any], times: dict[str, ServiceTimes]) -> WorkerProfile:
    """The profile with each kind of work as measured by the role that did most of it: prefill workers do not decode."""

    def busiest(kind: str) -> ServiceTimes:
        return times[max(times, key=lambda role: roles[role]["num_samples"][kind])]

    def enough(role: str, kind: str) -> ServiceTimes:
        known = times.get(role)
        return known if known is not None and roles[role]["num_samples"][kind] >= NEEDED_SAMPLES else busiest(kind)

    def role_of(profile: WorkerRoleProfile, role: str) -> WorkerRoleProfile:
        return profile.timed(enough(role, "decode").decode, enough(role, "prefill").prefill)

    return replace(base, prefill=role_of(base.prefill, "prefill"), decode=role_of(base.decode, "decode"))


def with_alone(profile: WorkerProfile, alone: IsolatedRuns, is_of_one_kind: bool) -> WorkerProfile:
    """The profile with decode steps as measured by streams, and prefill as measured by lone prompts. If prefill workers
    are of another kind, it is unclear which of the two a lone prompt was computed by; then it only tells how long
    clients wait in addition to the prefill."""
    if found := step_times(alone.steps):
        step_s, seq_s, token_s = found

        def timed(role: WorkerRoleProfile) -> WorkerRoleProfile:
            return replace(role, decode_step_s=step_s, decode_seq_s=seq_s, decode_context_token_s=token_s)

        profile = replace(profile, prefill=timed(profile.prefill), decode=timed(profile.decode))
        off = [abs(s.seconds / profile.decode.decode_s(s.num_seqs, s.context_tokens) - 1.0) for s in alone.steps]
        profile = replace(profile, noise=min(profile.noise, statistics.fmean(off)))  # a fit adds errors of its own
    if is_of_one_kind and (fitted := prompt_times(alone.prompts)):
        request_s, new_s, pair_s = fitted

        def prompted(role: WorkerRoleProfile) -> WorkerRoleProfile:
            return replace(role, prefill_chunk_s=0.0, prefill_token_s=new_s, prefill_pair_s=pair_s)

        prefill, decode = prompted(profile.prefill), prompted(profile.decode)
        return replace(profile, prefill=prefill, decode=decode, client_s=request_s)
    if alone.prompts:
        beyond = [one.ttft_s - profile.prefill.prefill_s(round(one.num_tokens)) for one in alone.prompts]
        profile = replace(profile, client_s=max(statistics.median(beyond), 0.0))
    return profile


def with_timelines(
    profile: WorkerProfile, alone: IsolatedRuns, timelines: RequestTimelines, is_of_one_kind: bool
) -> WorkerProfile:
    """The profile with what lies between a client and the steps, that is the part of the time to first token that is in
    no step. (The router's fit of transfers is not the latency of a link: transfers begin with the prompt's first
    layers, and so last as long as the prompt.)"""
    found = overheads(timelines.lone, alone.prompts)
    if found is None:
        return profile
    if is_of_one_kind and prompt_times(alone.prompts):
        rest_s = max(profile.client_s - found.client_s - found.num_messages * found.message_s, 0.0)
        prefill, decode = (
            replace(profile.prefill, prefill_chunk_s=rest_s),
            replace(profile.decode, prefill_chunk_s=rest_s),
        )
        profile = replace(profile, prefill=prefill, decode=decode, client_s=found.client_s)
    profile = replace(profile, message_s=found.message_s, link_latency_s=min(found.exposed_s, MAX_LATENCY_S))
    beside = (
        timeline_span(timelines.beside, profile.prefill.prefill_s, found.message_s) if profile.shared_cores else None
    )
    if beside is not None:
        profile = replace(profile, prefill_beside_decode=beside.factor, noise=max(profile.noise, beside.noise))
    return profile


def profile_warnings(profile: WorkerProfile, alone: IsolatedRuns) -> Iterator[str]:
    """Warnings about measurements that contradict the profile, one sentence each."""
    decode = profile.decode
    line = decode.decode_step_s, decode.decode_seq_s, decode.decode_context_token_s
    for step in alone.steps:
        if times_off(step, line) > MAX_TIMES_OFF:
            told_s = decode.decode_s(step.num_seqs, step.context_tokens)
            yield (
                f"a decode step of {step.num_seqs} sequences was measured as {1e3 * step.seconds:.3g} ms, and by the "
                f"profile it is {1e3 * told_s:.3g} ms: was the machine busy? Measure again with nothing else running"
            )


def decode_times(times: dict[str, ServiceTimes], kind: str) -> tuple[float, float]:
    """The times of a kind as measured by decode workers, which are the ones that see transfers."""
    base_s, page_s = (times.get("decode") or next(iter(times.values()))).coefficients(kind)
    return base_s, page_s


def unmeasured(role: dict[str, Any]) -> WorkerRoleProfile:
    return WorkerRoleProfile(
        decode_step_s=0.0,
        decode_seq_s=0.0,
        decode_context_token_s=0.0,
        prefill_chunk_s=0.0,
        prefill_token_s=0.0,
        prefill_pair_s=0.0,
        max_slots=int(role["max_slots"]),
        max_step_tokens=int(role["max_step_tokens"]),
        max_queued_tokens=int(role["max_queued_tokens"]),
    )


def model_shape(model_dir: Path | None) -> tuple[int, int | None]:
    """The number of layers, and the bytes of KV per token at two bytes per number. 32 layers if there is no config."""
    if model_dir is None:
        return 32, None
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
        heads, layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        return layers, layers * 2 * int(config.get("num_key_value_heads") or heads) * head_dim * 2
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return 32, None
