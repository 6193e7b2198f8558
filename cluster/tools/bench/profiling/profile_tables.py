"""A profile as tables, beside the measurements behind it and the router's own fits."""

from __future__ import annotations

from typing import Any

from slipstream.cluster.tools.bench.profiling.isolated_runs import IsolatedRuns
from slipstream.cluster.tools.report.table import Cell, Table
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.router.registry.service_times import ServiceTimes


def steps_table(profile: WorkerProfile, alone: IsolatedRuns, router_profile: dict[str, Any]) -> Table:
    """A table of each measurement beside the profile, and beside the router's fit."""
    fitted = {role["role"]: ServiceTimes.from_dict(role["times"]) for role in router_profile["roles"]}
    router = fitted.get("decode") or next(iter(fitted.values()))
    rows: list[list[Cell]] = []
    for step in alone.steps:
        seconds = router.decode_step_s(step.num_seqs, round(step.context_tokens)).seconds
        own = profile.decode.decode_s(step.num_seqs, step.context_tokens)
        rows.append([step.num_seqs, round(step.context_tokens), 1e3 * step.seconds, 1e3 * own, 1e3 * seconds])
    columns = ("sequences", "tokens of context", "measured (ms)", "profile (ms)", "fitted by the router (ms)")
    return Table("Decode steps", columns, rows)


def prompts_table(profile: WorkerProfile, alone: IsolatedRuns, router_profile: dict[str, Any]) -> Table:
    fitted = {role["role"]: ServiceTimes.from_dict(role["times"]) for role in router_profile["roles"]}
    router = fitted.get("prefill") or next(iter(fitted.values()))
    rows: list[list[Cell]] = []
    for one in alone.prompts:
        own = profile.prefill.prefill_s(round(one.num_tokens)) + profile.client_s
        seconds = router.prefill_s(round(one.num_tokens), 0, profile.prefill.max_step_tokens).seconds
        rows.append([round(one.num_tokens), 1e3 * one.ttft_s, 1e3 * own, 1e3 * seconds])
    note = f"{1e3 * profile.client_s:.2f} ms of the time to the first token belong to no token of the prompt."
    columns = ("tokens", "measured TTFT (ms)", "profile (ms)", "prefill fitted by the router (ms)")
    return Table("Lone prompts", columns, rows, note)


def profile_table(profile: WorkerProfile, router_profile: dict[str, Any]) -> Table:
    """A table of the profile in times that are easy to interpret, with the number of samples behind them."""
    samples = {role["role"]: role["num_samples"] for role in router_profile["roles"]}

    def counted(role: str, kind: str) -> int:
        return samples[role][kind] if role in samples else 0

    rows = []
    for role in ("prefill", "decode"):
        part = profile.prefill if role == "prefill" else profile.decode
        rows += [
            [role, "prompt of 256 tokens (ms)", 1e3 * part.prefill_s(256), counted(role, "prefill")],
            [role, "prompt of 1024 tokens (ms)", 1e3 * part.prefill_s(1024), counted(role, "prefill")],
            [role, "decode step, 1 sequence (ms)", 1e3 * part.decode_s(1, 256), counted(role, "decode")],
            [role, "decode step, 8 sequences (ms)", 1e3 * part.decode_s(8, 8 * 256), counted(role, "decode")],
        ]
    rows.append(["link", "MB/s", profile.link_bytes_per_s / 1e6, counted("decode", "transfer")])
    note = "A role without samples of its own is taken for like the other one."
    return Table(f"Profile {profile.name}", ("of", "what", "value", "samples"), rows, note)
