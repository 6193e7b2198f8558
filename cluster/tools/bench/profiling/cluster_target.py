"""A Slipstream cluster as a target: found by its name, and measured for a profile."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import uvloop

from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.clusters_here import cluster_here
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import CommandError
from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.client.request_body import RequestBody
from slipstream.cluster.tools.bench.client.server_facts import ServerFacts, ask, said
from slipstream.cluster.tools.bench.load.bench_stages import BenchStage, run_stages
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.load.measures import errors_of
from slipstream.cluster.tools.bench.profiling.isolated_runs import IsolatedRuns
from slipstream.cluster.tools.bench.profiling.profile_fit import Conditions, profile_of, profile_warnings
from slipstream.cluster.tools.bench.profiling.profile_load import phases
from slipstream.cluster.tools.bench.profiling.profile_tables import profile_table, prompts_table, steps_table
from slipstream.cluster.tools.bench.profiling.request_records import explained_by, listed_by, timelines_of
from slipstream.cluster.tools.bench.profiling.request_timeline import RequestTimelines
from slipstream.cluster.tools.report.table import Table
from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile

NVIDIA = Path("/dev/nvidiactl")
NUM_EXPLAINED = 20


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster on this machine. `admin_url` is where its status and profile are served."""

    state: ClusterState
    target: Target
    admin_url: str
    model_dir: Path | None

    @property
    def start_s(self) -> float | None:
        """The seconds that the slowest of its workers took to start."""
        took = [sum(seconds for _, seconds in member.startup_s) for member in self.state.members if member.startup_s]
        return max(took, default=None)


def running_cluster(name: str) -> RunningCluster:
    """The cluster with this name. Raises BenchError if none of that name listens on this machine."""
    try:
        state = cluster_here(name, "its URL")
    except CommandError as error:
        raise BenchError(str(error)) from None
    if not state.url:
        raise BenchError(f"{name} does not listen yet")
    try:
        model_dir = Path(load_config(Path(state.config)).model.path)
    except ConfigError:  # its file was changed or moved since the start
        model_dir = None
    target = replace(Target.of_url(state.url), check_certificate=False)
    return RunningCluster(state, target, state.ask_url, model_dir)


def run_profile(
    server: ServerFacts,
    form: RequestBody,
    cluster: RunningCluster | None,
    model_dir: Path | None,
    path: Path,
    seed: int,
) -> int:
    """Puts load on the cluster, writes the profile and shows it. Returns the exit code; raises BenchError."""
    admin = Target.of_url(cluster.admin_url) if cluster is not None else server.target
    admin = replace(admin, key=server.target.key, check_certificate=server.target.check_certificate)
    router_profile = fetched_from(admin, "/cluster/profile")
    decode: dict[str, Any] = next((role for role in router_profile["roles"] if role["role"] == "decode"), {})
    max_slots, num_workers = int(decode.get("max_slots", 1)), int(decode.get("num_workers", 1))
    max_model_len = min((int(role["max_model_len"]) for role in router_profile["roles"]), default=2048)
    load = list(phases(max_model_len, max_slots, num_workers))
    stages = [BenchStage(phase.level, phase.extent, phase.source) for phase in load]
    runs = uvloop.run(run_stages(stages, form, server.words, seed, sys.stderr))
    check_runs(runs)
    router_profile, alone = fetched_from(admin, "/cluster/profile"), IsolatedRuns.of(load, runs)
    timelines = RequestTimelines(timelines_of(admin, load, runs, "prompt"), timelines_of(admin, load, runs, "beside"))
    profile = profile_of(
        router_profile,
        name=path.stem,
        source=f"measured by slipstream bench --profile at {server.target.root}, model {server.target.model}",
        conditions=Conditions(
            model_dir,
            kv_bytes_per_token(admin, int(router_profile["roles"][0]["page_tokens"])),
            cluster.start_s if cluster is not None else None,
            has_gpus=is_here(admin) and NVIDIA.exists(),
            shares_cores=is_here(admin) and not NVIDIA.exists(),
        ),
        alone=alone,
        timelines=timelines,
    )
    for warning in profile_warnings(profile, alone):
        console.warning(warning)
    return written(
        profile,
        [
            profile_table(profile, router_profile),
            steps_table(profile, alone, router_profile),
            prompts_table(profile, alone, router_profile),
        ],
        path,
    )


def check_runs(runs: Sequence[LevelRun]) -> None:
    """Raises BenchError if not all of the load was served."""
    if any(run.was_interrupted for run in runs):
        raise BenchError("interrupted; no profile was written")
    failed = errors_of(answer for run in runs for answer in run.answers)
    if failed:
        kind, (count, example) = next(iter(failed.items()))
        raise BenchError(f"{count} requests of the load failed, so there is no profile: {kind}: {example}")
    for run in runs:
        if run.broke_off:
            raise BenchError(f"{run.broke_off}; no profile was written")


def is_here(target: Target) -> bool:
    return target.host in ("127.0.0.1", "::1", "localhost")


def kv_bytes_per_token(admin: Target, page_tokens: int) -> int | None:
    """The bytes of KV per token in the latest hand-offs of whole prompts; None if there were none, or they cannot be
    asked for."""
    found = []
    for listed in [one for one in listed_by(admin) if one.get("prefill")][:NUM_EXPLAINED]:
        record = explained_by(admin, listed)
        if record is not None and record.get("transfer"):
            num_tokens = -(-record["num_prompt_tokens"] // page_tokens) * page_tokens
            found.append(record["transfer"]["num_bytes"] // num_tokens)
    return max(found, default=0) or None  # the most, because partly cached prompts have fewer


def written(profile: WorkerProfile, tables: Sequence[Table], path: Path) -> int:
    try:
        profile.write(path)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from None
    for table in tables:
        click.echo(table.text(shutil.get_terminal_size((120, 24)).columns))
    click.echo(f"written to {path}")
    return 0


def fetched_from(admin: Target, path: str) -> dict[str, Any]:
    status, content = ask(admin, f"{admin.root}{path}")
    if status == 200 and isinstance(content, dict):
        return content
    if status == 404:
        raise BenchError(f"{admin.root} has no {path}: a Slipstream cluster is needed, or the URL of its router.admin")
    raise BenchError(f"{admin.root}{path}: status {status}: {said(content)}")
