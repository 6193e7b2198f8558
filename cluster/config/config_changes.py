"""The differences between two configurations of a cluster, and what it takes to get from one to the other. Pure.

rolled    worker groups are exchanged one by one: the model, the engine, the pools
live      the change counts from then on: the dispatcher's policy, levels and limits; the place of downloads
restart   only a restart helps: names, ports, files, and what outlives the workers
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.router.config.router_config import DispatchConfig

ROLLED = ("model.path", "model.version", "engine", "prefill", "decode", "kv_transfer")
# The block ids of all workers must be made from pages of one size, and a router's conversations outlive its workers.
NEVER_ROLLED = ("page_tokens",)
LIVE = tuple(
    f"router.dispatch.{key}"
    for key in (
        "policy",
        "slo",
        "local_prefill_max_tokens",
        "placement",
        "max_queued_requests",
        "max_queued_per_tenant",
        "max_attempts",
        "request_timeout_s",
        "strict_slo",
    )
)
DOWNLOADS = ("model_cache.path", "model_cache.max_gib")  # count when the next model is fetched
SIZES = ("prefill.replicas", "decode.replicas")


@dataclass(frozen=True, slots=True)
class Changes:
    """The keys that differ, by what they require. `sizes` are numbers of replicas, which alone need no new version."""

    rolled: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def changes_between(old: ClusterConfig, new: ClusterConfig) -> Changes:
    """The changes between two configurations that `load_config` has returned."""
    before, after = dict(_flat(old, "")), dict(_flat(new, ""))
    found: dict[str, list[str]] = {"rolled": [], "sizes": [], "live": [], "restart": []}
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            found[_kind(key)].append(key)
    # A shared setting is in `engine` and also, merged, in both pools: only the shortest key is reported.
    shared = {key for key in found["rolled"] if key.startswith("engine.")}
    found["rolled"] = [k for k in found["rolled"] if not (".engine." in k and k.split(".", 1)[1] in shared)]
    return Changes(*(tuple(found[kind]) for kind in ("rolled", "sizes", "live", "restart")))


def live_dispatch(old: DispatchConfig, new: DispatchConfig) -> DispatchConfig:
    """`old` with those settings of `new` that the router can take over while it runs."""
    keys = [key.rpartition(".")[2] for key in LIVE]
    return dataclasses.replace(old, **{key: getattr(new, key) for key in keys})


def _kind(key: str) -> str:
    if key in SIZES:
        return "sizes"
    if key.rpartition(".")[2] in NEVER_ROLLED:
        return "restart"
    for kind, prefixes in (("rolled", ROLLED), ("live", (*LIVE, *DOWNLOADS))):
        if any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes):
            return kind
    return "restart"


def _flat(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values. Anything that is not a section is a value."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        yield at, value
        return
    for field in dataclasses.fields(value):
        yield from _flat(getattr(value, field.name), f"{at}.{field.name}" if at else field.name)
