"""The lines at the terminal once a cluster is up."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.driver.curl_target import CurlTarget
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from slipstream.router.api.ui.built_page import is_built


def first_request(config: ClusterConfig, state: ClusterState) -> Iterator[str]:
    """Where the cluster serves, and a request to try, to the first model or about those of the repository."""
    key = " -H 'Authorization: Bearer KEY'" if config.router.access.keys_file is not None else ""
    yield ""
    if config.models:
        yield f"Models: {', '.join(', '.join((entry.name, *entry.aliases)) for entry in config.models)}"
    if config.repository.is_on:
        yield f"Repository: {', '.join(config.repository.paths)}"
        if state.grpc_url:
            yield f"gRPC: {state.grpc_url.removeprefix('grpc://')}"
        if state.tensor_metrics_url:
            yield f"Metrics: {state.tensor_metrics_url}/metrics"
    if config.router.ui.enabled and is_built():
        yield f"Page: {state.url}/ui/"
        if state.admin_url:
            yield f"Page of the cluster: {state.admin_url}/ui/#/cluster"
    yield f"Ready at {state.url} (Ctrl-C to stop). Try:"
    curl = CurlTarget.of(state.url, config.router.http.tls)
    if config.has_model:
        yield f"  curl {curl.options}-N {curl.url}/v1/chat/completions {_chat(config, key)}"
    if config.repository.is_on:
        yield f"  curl {curl.options}-X POST {curl.url}/v2/repository/index{key}"
    yield ""


def _chat(config: ClusterConfig, key: str) -> str:
    """The options of curl for a request to the first model."""
    body = {
        "model": config.model.name,
        "messages": [{"role": "user", "content": "Write a function that reads a file."}],
        "max_tokens": 100,
        "temperature": 0.7,
        "stream": True,
    }
    return f"-H 'Content-Type: application/json'{key} -d {shlex.quote(json.dumps(body))}"


def timings(stages: Iterable[tuple[str, float]], members: Iterable[MemberStatus]) -> Iterator[str]:
    """Where the time of the start went: `stages` of the whole, with seconds since the command, and those of members."""
    yield "Start, seconds since the command:"
    for text, at_s in stages:
        yield f"  {at_s:6.2f}  {text}"
    for member in members:
        for stage, took_s in member.startup_s:
            yield f"  {took_s:6.2f}  in {member.name}: {stage}"
