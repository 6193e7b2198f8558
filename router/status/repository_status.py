"""The state of a repository of tensor models, as `/cluster/status` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.router.tensors.infer_service import IndexEntry
from slipstream.router.tensors.model_spec import ModelPhase

LOADING = "models of the repository are being loaded"  # why a router is not ready


def repository_status(
    index: Iterable[IndexEntry], unreadable: Mapping[str, str], *, is_ready: bool, ledger: Mapping[str, int]
) -> dict[str, Any]:
    """The versions of all models, and whether the server is ready as KServe means it. `unreadable`: why models could
    not be read, which KServe's index does not say. `ledger`: how many instances, requests and pieces of memory there
    are, by name."""
    entries = [entry for entry in index if entry.phase is not None or entry.name not in unreadable]
    entries += [IndexEntry(name, "", ModelPhase.UNAVAILABLE, cause) for name, cause in unreadable.items()]
    models = [
        {
            "name": entry.name,
            "version": entry.version,
            "state": entry.phase.value if entry.phase is not None else "",
            "reason": entry.reason,
        }
        for entry in sorted(entries, key=lambda entry: entry.name)
    ]
    return {"ready": is_ready, "models": models, "ledger": dict(ledger)}
