"""The state of a repository of tensor models, as `/cluster/status` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from slipstream.router.config.repository_config import ControlMode
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.tensors.infer_service import IndexEntry
from slipstream.router.tensors.model_spec import ModelPhase

UNLOADED = "unloaded"  # the reason of a version that was unloaded
LOADING = "models of the repository are being loaded"  # why a router is not ready


def repository_status(
    index: Iterable[IndexEntry],
    failures: Mapping[str, str],
    *,
    is_ready: bool,
    control_mode: ControlMode,
    ledger: Mapping[str, int],
    instances: Iterable[InstancesStatus] = (),
) -> dict[str, Any]:
    """The versions of all models, and whether the server is ready as KServe means it. `failures`: why the latest load
    of a model has failed, by name, which KServe's index does not say of models that serve and those that could not be
    read. `ledger`: how many instances, requests and pieces of memory there are, by name. `instances`: those of
    each version that has some."""
    entries = list(index)
    names = {entry.name for entry in entries}
    entries += [IndexEntry(name) for name in failures if name not in names]
    models = [shown(entry, failures.get(entry.name, "")) for entry in sorted(entries, key=lambda entry: entry.name)]
    counts = [asdict(one) for one in instances]
    return {
        "ready": is_ready,
        "control_mode": control_mode,
        "models": models,
        "ledger": dict(ledger),
        "instances": counts,
    }


def shown(entry: IndexEntry, failure: str) -> dict[str, str]:
    """An entry of the index. `failure` is why the latest load of its model has failed, if it has."""
    phase, reason = entry.phase, entry.reason
    if failure and phase is ModelPhase.READY:
        reason = f"not reloaded: {failure}"
    elif failure and (phase is None or reason == UNLOADED):
        phase, reason = ModelPhase.UNAVAILABLE, failure
    return {
        "name": entry.name,
        "version": entry.version,
        "state": phase.value if phase is not None else "",
        "reason": reason,
    }
