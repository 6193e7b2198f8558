"""The state of a repository of tensor models, as `/cluster/status` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.router.tensors.infer_service import IndexEntry

LOADING = "models of the repository are being loaded"  # why a router is not ready


def repository_status(index: Iterable[IndexEntry], *, is_ready: bool, ledger: Mapping[str, int]) -> dict[str, Any]:
    """The versions of all models, and whether the server is ready as KServe means it. `ledger`: how many instances,
    requests and pieces of memory there are, by name."""
    models = [
        {
            "name": entry.name,
            "version": entry.version,
            "state": entry.phase.value if entry.phase is not None else "",
            "reason": entry.reason,
        }
        for entry in index
    ]
    return {"ready": is_ready, "models": models, "ledger": dict(ledger)}
