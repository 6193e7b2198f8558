"""The contents of `slipstream status`: the driver's state file, joined with the router's view of the load."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.model_lines import model_lines
from slipstream.cluster.state.repository_lines import repository_lines
from slipstream.cluster.state.router_probe import unverified
from slipstream.cluster.terminal.table import aligned

TIMEOUT_S = 2.0
KEY_VARIABLE = "SLIPSTREAM_API_KEY"


def router_status(url: str) -> dict[str, Any] | None:
    """The router's own view (`/cluster/status`). It is sent the key in the environment, if any. None if it does not
    answer, or demands an administrator's key."""
    if not url:
        return None
    question = urllib.request.Request(f"{url}/cluster/status", headers=shown_key(os.environ.get(KEY_VARIABLE)))
    try:
        with direct_opener(is_here=True).open(question, timeout=TIMEOUT_S) as answer:
            status = json.load(answer)
    except (OSError, ValueError):  # URLError is an OSError
        return None
    return status if isinstance(status, dict) else None


def direct_opener(is_here: bool) -> urllib.request.OpenerDirector:
    """Opens URLs without a proxy, because one that the environment names cannot reach addresses of this machine. The
    certificate of a router on this machine (`is_here`) is not checked."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if is_here:
        handlers.append(urllib.request.HTTPSHandler(context=unverified()))
    return urllib.request.build_opener(*handlers)


def shown_key(key: str | None) -> dict[str, str]:
    """The header with an API key, if there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def describe(
    state: ClusterState,
    router: dict[str, Any] | None,
    signals: dict[str, Any] | None = None,
    by_model: Mapping[str, dict[str, Any] | None] | None = None,
) -> Iterator[str]:
    """The lines for one cluster. `signals` are those of its only model; of several, `by_model` has them."""
    by_model = by_model or {}
    yield from _load_lines(state, router, signals, by_model)
    for line in aligned(_member_rows(state, router)):
        yield f"  {line}"
    yield from _version_lines(state, router)
    yield from _driver_lines(state)


def _load_lines(
    state: ClusterState,
    router: dict[str, Any] | None,
    signals: dict[str, Any] | None,
    by_model: Mapping[str, dict[str, Any] | None],
) -> Iterator[str]:
    has_models = bool(state.further)
    load = f", {router['num_running']} running, {router['num_waiting']} waiting" if router else ""
    phase = "starting again" if state.phase == "down" else state.phase
    what = state.model or "a model repository"
    if has_models:
        what = f"{len(state.models)} model{'s' * (len(state.models) > 1)}"
    yield f"{state.name}: {phase}, {what} at {state.url or '(not listening yet)'}{'' if has_models else load}"
    if has_models:
        yield from model_lines(state, by_model)
    for role in ("prefill", "decode") if state.model and not has_models else ():
        states = Counter(member.state for member in state.members if member.role == role)
        yield f"  {role}: {', '.join(f'{count} {what}' for what, count in sorted(states.items())) or 'none'}"
    if router is not None and "repository" in router:
        yield from repository_lines(state, router["repository"])
    if signals is not None:
        yield from _service(signals)
    for name, of_model in by_model.items():
        for line in _service(of_model) if of_model is not None else ():
            yield f"  {name}: {line.strip()}"


def _member_rows(state: ClusterState, router: dict[str, Any] | None) -> list[tuple[str, ...]]:
    has_models = bool(state.further)
    loads = {worker["peer"]["name"]: worker for worker in router["workers"]} if router else {}
    versions = {(member.model, member.version) for member in state.members if member.version}
    has_several = len(versions) > len(state.models)  # as while an update exchanges the workers, or tries a canary
    version = (*(("MODEL",) if has_models else ()), *(("VERSION",) if has_several else ()))
    rows: list[tuple[str, ...]] = [
        ("NAME", "ROLE", *version, "STATE", "FOR", "RESTARTS", "REQUESTS", "FREE PAGES", "HOST", "PIDS", "")
    ]
    for member in state.members:
        worker = loads.get(member.name)
        requests = str(worker["num_requests"]) if worker else "-"
        pages = f"{worker['free_pages']}/{worker['num_pages']}" if worker else "-"
        pids = " ".join(map(str, member.pids)) or "-"
        age = duration(time.time() - member.since)
        rows.append(
            (
                *(member.name, member.role),
                *((member.model or "-",) if has_models else ()),
                *((member.version or "-",) if has_several else ()),
                *(member.state, age, str(member.restarts)),
                *(requests, pages, member.host or "-", pids, member.detail),
            )
        )
    return rows


def _version_lines(state: ClusterState, router: dict[str, Any] | None) -> Iterator[str]:
    """What is served, what does not go together, and the updates."""
    has_models = bool(state.further)
    if state.version and not has_models:
        yield f"  version: {state.version}"
    served = {member.version for member in state.members}
    for model in state.models:
        which = f"{model.model}: " if has_models else ""
        for changed, difference in sorted(model.files.items()):
            if changed in served:
                yield f"  files: {which}{consequence(changed, difference)}"
    for refused in router.get("refused_pairs", ()) if router else ():
        sides = (", ".join(refused["prefills"]), ", ".join(refused["decodes"]))
        yield f"  never paired: {sides[0]} and {sides[1]} exchange no pages: {refused['reason']}"
    for remark in router.get("drift", ()) if router else ():
        yield f"  drift: {remark}"
    for model in state.models:
        if model.update:
            yield f"  update: {f'{model.model}: ' if has_models else ''}{model.update}"


def _driver_lines(state: ClusterState) -> Iterator[str]:
    """Where the driver is, and where more is to be seen."""
    ours = f", Slipstream {state.slipstream}" if state.slipstream else ""
    its = f" ({state.guardian_slipstream or '0.1'})" if state.guardian_slipstream != state.slipstream else ""
    yield f"  driver: pid {state.driver}{ours}, of guardian {state.pid}{its}, {state.config}"
    if state.operator_url:
        yield f"  admin API: {state.operator_url}/docs"
    if state.admin_url:
        yield f"  metrics: {state.admin_url}/metrics"
    if state.log_dir:
        yield f"  logs: {state.log_dir}"


def consequence(version: str, difference: str) -> str:
    """What follows from the difference between the files of a version that is served and those that are there now."""
    return (
        f"{difference}; version {version} is served from memory, and none of its workers can be started again until "
        "the old files are back; `slipstream update` rolls out what is there"
    )


def _service(signals: dict[str, Any]) -> Iterator[str]:
    """The recent load and how well it was served, one line per window."""
    short, long = signals["short"], signals["long"]
    for window in (short, long) if long["span_s"] > short["span_s"] else (short,):  # they are one at the beginning
        if not (window["num_arrivals"] or window["num_refused"] or window["ttft_s"]["count"]):
            continue
        ttft, itl = window["ttft_s"], window["itl_s"]
        first = sum(one["num_first"] for one in window["classes"])
        finished = sum(one["num_finished"] for one in window["classes"])
        parts = [f"{window['num_arrivals'] / window['span_s']:.1f} requests/s" if window["span_s"] > 0 else ""]
        if first:
            met = sum(one["num_ttft_met"] for one in window["classes"]) / first
            parts.append(f"TTFT p50 {latency(ttft['p50'])}, p99 {latency(ttft['p99'])}, in time {met:.0%}")
        if finished:
            met = sum(one["num_itl_met"] for one in window["classes"]) / finished
            parts.append(f"ITL p50 {latency(itl['p50'])}, p99 {latency(itl['p99'])}, in time {met:.0%}")
        ended = finished + window["num_failed"]
        if ended:
            good = sum(one["num_good"] for one in window["classes"]) / ended
            parts.append(f"SLO kept by {good:.0%}")
        if window["num_refused"]:
            parts.append(f"{window['num_refused']} refused")
        yield f"  last {window['span_s']:.0f} s: {'; '.join(filter(None, parts))}"


def latency(seconds: float) -> str:
    """A latency for people: of a laptop's milliseconds as of a long queue's seconds there is something to read."""
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def duration(seconds: float) -> str:
    """A duration for people: two digits and a unit."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
