"""Reads the records of requests from a router."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from slipstream.cluster.tools.bench.client.bench_target import Target
from slipstream.cluster.tools.bench.client.server_facts import ask
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.profiling.profile_load import PhaseKind, ProfilePhase
from slipstream.cluster.tools.bench.profiling.request_timeline import RequestTimeline

NUM_RECORDS = 1000


def listed_by(admin: Target) -> list[dict[str, Any]]:
    """The latest requests; none if they cannot be asked for."""
    status, content = ask(admin, f"{admin.root}/v1/requests?limit={NUM_RECORDS}")
    return list(content.get("data", [])) if status == 200 and isinstance(content, dict) else []


def explained_by(admin: Target, listed: dict[str, Any]) -> dict[str, Any] | None:
    """The explanation of a listed request; None if its record is gone."""
    status, record = ask(admin, f"{admin.root}/v1/requests/{quote(str(listed['request_id']), safe='')}/explain")
    return record if status == 200 and isinstance(record, dict) else None


def timelines_of(
    admin: Target, load: Sequence[ProfilePhase], runs: Sequence[LevelRun], kind: PhaseKind
) -> list[RequestTimeline]:
    """The passages of the requests that came during phases of a kind. There is one of `runs` for each phase of
    `load`."""
    spans = [
        (run.unix_s, run.unix_s + max((answer.ended_s for answer in run.answers), default=run.begun_s) - run.begun_s)
        for phase, run in zip(load, runs, strict=True)
        if phase.kind == kind
    ]
    found = []
    for listed in listed_by(admin):
        queued_s = datetime.fromisoformat(listed["queued_at"]).timestamp()
        if any(begun_s <= queued_s <= ended_s for begun_s, ended_s in spans):
            record = explained_by(admin, listed)
            timeline = RequestTimeline.of(record) if record is not None else None
            if timeline is not None:
                found.append(timeline)
    return found
