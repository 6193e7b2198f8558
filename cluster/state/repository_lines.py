"""The lines of `slipstream status` about a repository of tensor models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from slipstream.cluster.state.cluster_state import ClusterState

MAX_FAILED = 10  # models that are named


def repository_lines(state: ClusterState, repository: dict[str, Any]) -> Iterator[str]:
    """How many versions are in which state, where clients find them, and why some are not served. `repository` is what
    the router says."""
    versions = [model for model in repository["models"] if model["state"]]
    states = Counter(model["state"].lower() for model in versions)
    parts = [", ".join(f"{count} {what}" for what, count in sorted(states.items())) or "no model is loaded"]
    if state.grpc_url:
        parts.append(f"gRPC at {state.grpc_url.removeprefix('grpc://')}")
    if state.tensor_metrics_url:
        parts.append(f"metrics at {state.tensor_metrics_url}/metrics")
    yield f"  repository: {'; '.join(parts)}"
    for failure in failures(repository):
        yield f"    {failure}"
    for instances in repository.get("instances", ()):  # which a router of an earlier release does not name
        if instances["max"] is not None or len(instances["hosts"]) > 1 or instances["latest"]:
            yield f"    {instances_line(instances)}"


def instances_line(instances: dict[str, Any]) -> str:
    bounds = f" ({instances['min']} to {instances['max']})" if instances["max"] is not None else ""
    hosts = ", ".join(f"{count} on {host}" for host, count in sorted(instances["hosts"].items()))
    latest = f"; {instances['latest']}" if instances["latest"] else ""
    wanted = f"{instances['count']} wanted{bounds}: {hosts or 'none serves'}"
    return f"{instances['model']} version {instances['version']}: instances {wanted}{latest}"


def start_lines(repository: dict[str, Any]) -> Iterator[str]:
    """What came of the loads of the start."""
    found = list(failures(repository))
    yield "the models are loaded" if not found else "the models are loaded, but for these:"
    for failure in found:
        yield f"  {failure}"


def failures(repository: dict[str, Any]) -> Iterator[str]:
    """Why versions are not served, or serve although what is in the repository now could not be loaded; of the first
    ones."""
    failed = [model for model in repository["models"] if has_failed(model)]
    for model in failed[:MAX_FAILED]:
        reason = model["reason"].strip().partition("\n")[0]  # what follows is where in the code
        which = f"{model['name']} version {model['version']}" if model["version"] else model["name"]
        yield f"{which}: {reason}"
    if len(failed) > MAX_FAILED:
        yield f"and {len(failed) - MAX_FAILED} more"


def has_failed(model: dict[str, str]) -> bool:
    if model["state"] == "READY":
        return model["reason"] != ""
    return model["state"] == "UNAVAILABLE" and model["reason"] != "unloaded"
