"""Where the files of clusters are on a host."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from slipstream.router.config.router_config import MAX_UNIX_PATH_BYTES


def run_folder() -> Path:
    """`$XDG_RUNTIME_DIR/slipstream` or, without that variable, `~/.cache/slipstream/run`."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "slipstream" if runtime else cache_folder() / "run"


class NoHome(Exception):  # noqa: N818 - reads as the sentence it carries
    """There is no folder for the files of a cluster."""


def cache_folder() -> Path:
    """Raises NoHome."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "slipstream"
    except RuntimeError:
        raise NoHome("this user has no home directory; set HOME, or XDG_RUNTIME_DIR and XDG_CACHE_HOME") from None


def state_folder() -> Path:
    """`$XDG_STATE_HOME/slipstream` or, without that variable, `~/.local/state/slipstream`: for what outlives the
    cluster. Raises NoHome."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "slipstream"
    except RuntimeError:
        raise NoHome("this user has no home directory; set HOME or XDG_STATE_HOME") from None


def store_folder(name: str) -> Path | None:
    """Where the router of the cluster with this name keeps objects and files, unless its configuration says otherwise.
    None: this user has no folder for that."""
    try:
        return state_folder() / "store" / name
    except NoHome:
        return None


def instances_path(name: str) -> Path:
    """Where the router of the cluster with this name listens for instances on its host: in the run folder, if a Unix
    socket can have so long a path."""
    path = run_folder() / f"{name}.instances.sock"
    if len(str(path).encode()) <= MAX_UNIX_PATH_BYTES:
        return path
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"slipstream-{os.getuid()}-{digest}.sock"
